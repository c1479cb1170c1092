"""Bad input is refused before anything is made, by the name of the variable or the value."""

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    SandboxStartError,
    Session,
)
from sandboxkit.providers.modal import ModalProvider
from tests.modal.server import ModalServer


def test_a_user_that_the_sandbox_does_not_have(server: ModalServer, session: Session) -> None:
    with pytest.raises(SandboxStartError, match="no-such-user"):
        session.sandbox(user="no-such-user").start().result(30)


def test_a_gpu_that_does_not_exist(server: ModalServer, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="ABACUS"):
        session.sandbox(gpu="abacus").start().result(30)


def test_a_region_that_does_not_exist(server: ModalServer) -> None:
    provider = ModalProvider(region="atlantis")
    with Session(provider) as session, pytest.raises(ConfigurationError, match="atlantis"):
        session.sandbox().start().result(30)
    Operation(provider.aclose()).result(30)


def test_a_memory_limit_that_is_out_of_bounds(server: ModalServer, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        session.sandbox(memory_mb=1 << 30).start().result(30)


def test_an_app_name_that_modal_refuses(server: ModalServer) -> None:
    provider = ModalProvider(app="no spaces allowed")
    with Session(provider) as session, pytest.raises(ConfigurationError, match="no spaces"):
        session.sandbox().start().result(30)
    Operation(provider.aclose()).result(30)
