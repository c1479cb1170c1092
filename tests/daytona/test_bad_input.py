"""Bad keys, addresses and options: a typed error that names them, and nothing created."""

import pytest

from sandboxkit import (
    ConfigurationError,
    ImageNotFoundError,
    Operation,
    SandboxError,
    SandboxStartError,
    Session,
)
from sandboxkit.providers.daytona import DaytonaProvider
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
def test_an_invalid_variable_is_named(
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
        {"user": "root"},
        {"lifetime": 31 * 24 * 3600.0},
        {"image": "two words"},
        {"env": {"NAME": "\udc80"}},
    ],
    ids=str,
)
def test_an_unsupported_option_is_named(session: Session, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        session.sandbox(**options)  # type: ignore[arg-type]  # of many types


def test_an_unknown_snapshot(session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="snapshot:nowhere"):
        session.sandbox(image="snapshot:nowhere").start().result(10)


def test_an_image_that_cannot_be_pulled(session: Session) -> None:
    with pytest.raises(ImageNotFoundError, match="manifest unknown"):
        session.sandbox(image="registry.test/missing:1").start().result(10)


def test_a_user_that_the_image_does_not_have(session: Session) -> None:
    with pytest.raises(SandboxStartError, match="nobody2"):
        session.sandbox(image="python:3.12", user="nobody2").start().result(10)


@pytest.mark.parametrize("user", ["root", "nobody2"])
def test_a_user_for_one_command(session: Session, user: str) -> None:
    sandbox = session.sandbox()
    with pytest.raises(ConfigurationError, match=user):
        sandbox.exec(["true"], user=user).result(30)
    assert sandbox.exec(["id", "-un"], user="daytona").result(30).stdout == "daytona\n"


def test_any_environment_reaches_the_command(session: Session) -> None:
    result = session.sandbox(env={"a.b": "1"}).exec(["env"], env={"not-a-name": "2"}).result(30)
    assert {"a.b=1", "not-a-name=2"} <= set(result.stdout.splitlines())


@pytest.mark.parametrize(("lifetime", "seconds"), [(61.5, 120), (None, 900)])
def test_a_lifetime_is_sent_in_whole_minutes(
    session: Session, lifetime: float | None, seconds: int
) -> None:
    info = session.sandbox(lifetime=lifetime).start().result(30).status().result(30)
    assert info.expires_at is not None
    assert info.created_at is not None
    assert round((info.expires_at - info.created_at).total_seconds()) == seconds


def test_doctor_needs_no_sandbox(
    server: Server, provider: DaytonaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Operation(provider.diagnose()).result(30).available
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_wrong")
    other = DaytonaProvider(timeout=2)
    output = Operation(other.diagnose()).result(30)
    Operation(other.aclose()).result(30)
    assert not output.available
    assert "DAYTONA_API_KEY" in output.remedy
    assert set(server.requests) == {"GET /api/sandbox"}


def test_a_closed_provider_says_so(server: Server) -> None:
    provider = DaytonaProvider()
    Operation(provider.aclose()).result(30)
    with pytest.raises(ConfigurationError, match="closed"):
        Session(provider).list().result(30)
    assert server.requests == []
