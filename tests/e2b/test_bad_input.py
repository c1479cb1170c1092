"""What cannot work is refused by name, before anything is created."""

import os
from typing import Any
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, ImageNotFoundError, Operation, Session
from sandboxkit.providers.e2b import E2BProvider
from tests.emulators._server import Server


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("E2B_API_KEY", ""),
        ("E2B_API_KEY", "e2b_ with a space"),
        ("E2B_API_KEY", "e2b_line\nbreak"),
        ("E2B_API_KEY", "e2b_ü"),
        ("E2B_API_URL", "ftp://somewhere"),
        ("E2B_SANDBOX_URL", "somewhere"),
        ("E2B_DOMAIN", "https://e2b.app"),
    ],
)
def test_an_invalid_variable_is_refused(server: Server, variable: str, value: str) -> None:
    with (
        mock.patch.dict(os.environ, {variable: value}),
        pytest.raises(ConfigurationError, match=variable),
    ):
        Session("e2b")
    assert server.requests == []


@pytest.mark.parametrize(
    "options",
    [
        {"cpus": 2},
        {"memory_mb": 512},
        {"disk_mb": 512},
        {"pids": 100},
        {"gpu": "T4"},
        {"user": "root", "profile": "strict"},
        {"workdir": "/", "profile": "strict"},
        {"lifetime": 24 * 3600 + 1},
        {"env": {"A": "\ud800"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_e2b_lacks_are_refused(
    server: Server, session: Session, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        session.sandbox(**options)
    assert server.requests == []


def test_an_unknown_template(server: Server, session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="no-such-template"):
        session.sandbox(image="no-such-template").start().result(30)
    assert server.alive == []


def test_an_unknown_user_is_refused(server: Server, session: Session) -> None:
    with pytest.raises(ConfigurationError, match="nobody-here"):
        session.sandbox().exec(["true"], user="nobody-here").result(30)


def test_a_lifetime_is_rounded_up(server: Server, session: Session) -> None:
    sandbox = session.sandbox(lifetime=99.2).start().result(30)
    info = sandbox.status().result(30)
    assert info.expires_at is not None
    assert info.created_at is not None
    assert round((info.expires_at - info.created_at).total_seconds()) == 100


def test_a_sandbox_without_a_lifetime_has_one_at_e2b(server: Server, session: Session) -> None:
    sandbox = session.sandbox(lifetime=None).start().result(30)
    info = sandbox.status().result(30)
    assert info.expires_at is not None
    assert info.created_at is not None
    assert (info.expires_at - info.created_at).total_seconds() < 1000


def test_doctor_needs_no_sandbox(server: Server) -> None:
    provider = E2BProvider(timeout=2)
    assert Operation(provider.diagnose()).result(30).available
    Operation(provider.aclose()).result(30)
    with mock.patch.dict(os.environ, {"E2B_API_KEY": "e2b_wrong"}):
        provider = E2BProvider(timeout=2)
        output = Operation(provider.diagnose()).result(30)
        Operation(provider.aclose()).result(30)
    assert not output.available
    assert "E2B_API_KEY" in output.remedy
    assert "POST /v2/sandboxes" not in server.requests
