"""Bad input is refused before anything is made, by the name of the variable or the value."""

import pytest

from sandboxkit import (
    ConfigurationError,
    ImageNotFoundError,
    Operation,
    SandboxStartError,
    Session,
)
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import ModalEmulator


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODAL_TOKEN_ID", None),
        ("MODAL_TOKEN_SECRET", None),
        ("MODAL_TOKEN_ID", "as-swapped"),
        ("MODAL_TOKEN_SECRET", "ak-swapped"),
        ("MODAL_TOKEN_ID", "ak-line\nbreak"),
        ("MODAL_TOKEN_SECRET", "as-ümlaut"),
        ("MODAL_SERVER_URL", "api.modal.com"),
    ],
)
def test_keys_that_are_missing_or_malformed(
    emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with Session(ModalProvider()) as session, pytest.raises(ConfigurationError, match=name):
        session.sandbox().start().result(30)
    assert emulator.ask("calls") == {}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lifetime", None),
        ("lifetime", 24 * 3600 + 1),
        ("pids", 64),
        ("disk_mb", 100),
        ("tags", {"a/" * 31 + "a": "1"}),
    ],
)
def test_options_that_modal_cannot_honour(
    emulator: ModalEmulator, session: Session, option: str, value: object
) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}|tag"):
        session.sandbox(**{option: value})  # type: ignore[arg-type]  # one of many options
    assert emulator.ask("calls") == {}


def test_a_name_of_a_variable_that_a_shell_cannot_take(
    emulator: ModalEmulator, session: Session
) -> None:
    sandbox = session.sandbox(env={"A.B": "spec"}).start().result(30)
    output = sandbox.exec(["env"], env={"A-B": "command"}).result(30).stdout.splitlines()
    assert {"A.B=spec", "A-B=command"} <= set(output)


def test_a_user_that_the_sandbox_does_not_have(emulator: ModalEmulator, session: Session) -> None:
    with pytest.raises(SandboxStartError, match="no-such-user"):
        session.sandbox(user="no-such-user").start().result(30)


def test_an_image_that_does_not_exist(emulator: ModalEmulator, session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="no-such-image"):
        session.sandbox(image="registry.example/no-such-image:1").start().result(30)


def test_an_image_id_that_does_not_exist(emulator: ModalEmulator, session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="im-nothing"):
        session.sandbox(image="im-nothing").start().result(30)


def test_a_gpu_that_does_not_exist(emulator: ModalEmulator, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="ABACUS"):
        session.sandbox(gpu="abacus").start().result(30)


def test_a_region_that_does_not_exist(emulator: ModalEmulator) -> None:
    provider = ModalProvider(region="atlantis")
    with Session(provider) as session, pytest.raises(ConfigurationError, match="atlantis"):
        session.sandbox().start().result(30)
    Operation(provider.aclose()).result(30)


def test_a_memory_limit_that_is_out_of_bounds(emulator: ModalEmulator, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        session.sandbox(memory_mb=1 << 30).start().result(30)


def test_a_sub_second_lifetime_is_rounded_up(emulator: ModalEmulator, session: Session) -> None:
    sandbox = session.sandbox(lifetime=0.4).start().result(30)
    assert emulator.ask("timeout", sandbox_id=sandbox.id) == 1


def test_an_app_name_that_modal_refuses(emulator: ModalEmulator) -> None:
    provider = ModalProvider(app="no spaces allowed")
    with Session(provider) as session, pytest.raises(ConfigurationError, match="no spaces"):
        session.sandbox().start().result(30)
    Operation(provider.aclose()).result(30)


def test_the_doctor_names_the_variable(
    emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODAL_TOKEN_ID")
    found = Operation(ModalProvider().diagnose()).result(30)
    assert not found.available
    assert "MODAL_TOKEN_ID" in found.remedy


def test_the_doctor_tells_a_wrong_key(
    emulator: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong")
    provider = ModalProvider()
    found = Operation(provider.diagnose()).result(30)
    Operation(provider.aclose()).result(30)
    assert not found.available
    assert "MODAL_TOKEN_SECRET" in found.remedy


def test_the_doctor_makes_no_sandbox(emulator: ModalEmulator, provider: ModalProvider) -> None:
    assert Operation(provider.diagnose()).result(30).available
    assert set(emulator.ask("calls")) == {"ClientHello"}
