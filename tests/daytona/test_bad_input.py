"""Bad keys, addresses and options: a typed error that names them, and nothing created."""

import pytest

from sandboxkit import ConfigurationError, ImageNotFoundError, SandboxError, Session
from tests.emulators._server import Server


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("DAYTONA_API_KEY", "", "DAYTONA_API_KEY"),
        ("DAYTONA_API_KEY", "two words", "DAYTONA_API_KEY"),
        ("DAYTONA_API_KEY", "line\nbreak", "DAYTONA_API_KEY"),
        ("DAYTONA_API_KEY", "wrong", "DAYTONA_API_KEY"),
        ("DAYTONA_API_URL", "app.daytona.io", "DAYTONA_API_URL"),
        ("DAYTONA_API_URL", "http://127.0.0.1:9", "DAYTONA_API_URL"),
        ("DAYTONA_TARGET", "moon", "Region moon"),
    ],
)
def test_a_variable_is_named(
    server: Server,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    named: str,
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SandboxError, match=named):
        session.sandbox().start().result(10)


@pytest.mark.parametrize(
    "options",
    [
        {"pids": 64},
        {"memory_mb": 128},
        {"memory_mb": 1500, "image": "python:3.12"},
        {"cpus": 0.5, "image": "python:3.12"},
        {"gpu": "A100"},
        {"profile": "strict"},
        {"lifetime": 31 * 24 * 3600.0},
        {"image": "two words"},
        {"env": {"NAME": "\udc80"}},
    ],
    ids=str,
)
def test_an_option_is_named(session: Session, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        session.sandbox(**options)  # type: ignore[arg-type]  # of many types


def test_an_unknown_snapshot(session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="snapshot:nowhere"):
        session.sandbox(image="snapshot:nowhere").start().result(10)


def test_an_image_that_cannot_be_pulled(session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="manifest unknown"):
        session.sandbox(image="registry.test/missing:1").start().result(10)


def test_a_user_that_daytona_does_not_know(session: Session) -> None:
    with pytest.raises(ConfigurationError, match="User nobody2"):
        session.sandbox(user="nobody2").start().result(10)
