"""A program in the agent's place cannot outlast a deadline, a stop or its lifetime, whatever it answers."""

import hashlib
import subprocess
from collections.abc import Iterator

import pytest

from sandboxkit import CommandTimeoutError, Operation, SandboxError, SandboxTerminatedError, Session
from sandboxkit.provider import Provider
from sandboxkit.providers._agent import client, stream
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._loopback import HOSTS
from sandboxkit.providers.local import LocalProvider, _provider
from tests.agent.conftest import PROGRAMS, hostile_agents
from tests.docker_here import require_docker

VOLUME = hashlib.sha256(PROGRAMS["hostile"].encode() + HOSTS).hexdigest()[:16]
_SECONDS = 60.0


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    if request.param == "docker":
        require_docker()
    monkeypatch.setattr(client, "_KILL_PATIENCE", 0.5)
    monkeypatch.setattr(client, "_LONG_KILL_PATIENCE", 1.0)
    monkeypatch.setattr(client, "_SLOW_KILL_PATIENCE", 1.0)
    monkeypatch.setattr(stream, "_LOOK", 0.1)
    monkeypatch.setattr(_provider, "_LATE", 0.5)
    with hostile_agents():
        found = DockerProvider() if request.param == "docker" else LocalProvider()
        yield found
        Operation(found.aclose()).result(_SECONDS)
    if request.param == "docker":
        remove = ["docker", "volume", "rm", f"sandboxkit-agent-{VOLUME}"]
        subprocess.run(remove, check=True, capture_output=True)


@pytest.mark.parametrize("mode", ["deaf", "stubborn", "busy"])
def test_a_command_that_its_agent_does_not_kill_ends_with_its_sandbox(
    provider: Provider, mode: str
) -> None:
    with Session(provider, env={"HOSTILE": mode}) as session:
        sandbox = session.sandbox().start().result(_SECONDS)
        with pytest.raises(SandboxError) as raised:
            sandbox.exec(["true"], timeout=0.2).result(_SECONDS)
        # Programs that leave the agent no time are not excused: `busy` looks as they do.
        assert isinstance(raised.value, CommandTimeoutError) == (mode == "busy")
        with pytest.raises(SandboxTerminatedError, match="could not be killed"):
            sandbox.exec(["true"]).result(_SECONDS)
        assert sandbox.id not in [info.id for info in session.list().result(_SECONDS)]


@pytest.mark.parametrize("mode", ["deaf", "stubborn"])
def test_a_stop_ends_an_agent_that_acknowledges_and_does_nothing(
    provider: Provider, mode: str
) -> None:
    with Session(provider, env={"HOSTILE": mode}) as session:
        sandbox = session.sandbox().start().result(_SECONDS)
        running = sandbox.exec(["true"], stdin=bytes(4 << 20))
        with pytest.raises(TimeoutError):
            running.result(0.5)
        sandbox.stop().result(_SECONDS)
        with pytest.raises(SandboxTerminatedError):
            running.result(_SECONDS)
        assert sandbox.id not in [info.id for info in session.list().result(_SECONDS)]


@pytest.mark.parametrize("provider", ["local"], indirect=True)
@pytest.mark.parametrize("renewed", [None, 0.5])
def test_a_lifetime_ends_without_the_agent(provider: Provider, renewed: float | None) -> None:
    lifetime = 60.0 if renewed else 0.5
    with Session(provider, env={"HOSTILE": "stubborn"}, lifetime=lifetime) as session:
        sandbox = session.sandbox().start().result(_SECONDS)
        if renewed:
            sandbox.renew(renewed).result(_SECONDS)
        with pytest.raises(SandboxTerminatedError, match="its lifetime is over"):
            sandbox.exec(["true"]).result(_SECONDS)
