"""gVisor as the isolation of docker's sandboxes: chosen by an option, and refused where it cannot hold."""

import json
import re
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Operation, SandboxError, Session
from sandboxkit.providers.docker import DockerProvider, _daemon
from sandboxkit.providers.docker._answers import ended_itself
from sandboxkit.providers.docker._daemon import DaemonInfo
from sandboxkit.providers.docker._gvisor import Runtimes
from sandboxkit.types import SandboxSpec
from tests.docker.boxes import Containers
from tests.docker.conftest import SOCKET, containers
from tests.docker_here import require_gvisor
from tests.faults import Fault, FaultProxy, HttpAnswer, Request

RUNC = {"runc": ("runc",)}
HERE = DaemonInfo(
    architecture="x86_64", cpus=2, version="", runtimes=RUNC, default_runtime="runc", security=()
)
OFFLINE = replace(HERE, runtimes={**RUNC, "g": ("/opt/runsc", "--network=none")})
GVISOR = SandboxSpec(isolation="gvisor")


def with_shim(name: str) -> DaemonInfo:
    return replace(HERE, runtimes={**RUNC, "x": (name,)})


def test_the_daemons_runtime_is_found_by_its_program() -> None:
    plain = SandboxSpec()
    settle = Runtimes().settle
    assert settle(plain, None, OFFLINE) == (plain, None)
    assert settle(GVISOR, None, OFFLINE) == (GVISOR, "g")
    assert settle(GVISOR, None, with_shim("io.containerd.runsc.v1")) == (GVISOR, "x")
    # A runtime of the provider's own choice, or the daemon's default, counts as gVisor as well.
    assert settle(plain, "g", OFFLINE) == (GVISOR, "g")
    default = replace(OFFLINE, default_runtime="g")
    assert settle(plain, None, default) == (GVISOR, "g")
    with pytest.raises(ConfigurationError, match="pids=64"):
        settle(SandboxSpec(pids=64), None, default)
    for runtime, info in ((None, HERE), ("runc", OFFLINE), (None, with_shim("/opt/wrapper"))):
        with pytest.raises(ConfigurationError, match=r"isolation='gvisor'.*install runsc"):
            settle(GVISOR, runtime, info)
    online = SandboxSpec(isolation="gvisor", network="internet")
    with pytest.raises(ConfigurationError, match=r"network='internet'.*--network=none"):
        settle(online, None, OFFLINE)
    assert settle(online, None, with_shim("/opt/runsc")) == (online, "x")


@pytest.mark.anyio
async def test_runtimes_that_a_reload_changes_are_seen_and_a_new_program_is_looked_at(
    daemon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped, plain = ({"w": {"path": f"/opt/{name}"}} for name in ("wrapper", "other"))
    answers = [
        {"Architecture": "x86_64", "Runtimes": each, "DefaultRuntime": "w"}
        for each in (wrapped, plain)
    ]

    def plan(request: Request) -> Fault | None:
        if re.match("GET .*/info", request.line) is None:
            return None
        return HttpAnswer(200, json.dumps(answers.pop(0)).encode())

    async def version() -> bytes:
        return b"gvisor"

    runtimes = Runtimes()
    with FaultProxy(f"unix://{SOCKET}", plan=plan) as proxy:
        provider = DockerProvider(base_url=proxy.url)
        first = await provider.daemon.info()
        await runtimes.prove(GVISOR, None, first, version)
        assert await provider.daemon.info() is first
        monkeypatch.setattr(_daemon, "monotonic", lambda: monotonic() + 61)
        second = await provider.daemon.info()
        await provider.aclose()
    assert runtimes.settle(SandboxSpec(), None, first) == (GVISOR, "w")
    assert runtimes.settle(SandboxSpec(), None, second) == (SandboxSpec(), None)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("runtime", "isolation"), [("runsc", None), ("runsc", "gvisor"), ("runc", "gvisor")]
)
async def test_a_wrapper_is_known_by_the_kernel_of_its_first_sandbox(
    boxes: Containers, tag: str, runtime: str, isolation: str | None
) -> None:
    require_gvisor()
    provider = boxes.provider(runtime=runtime)
    info = await provider.daemon.info()
    assert info.default_runtime == "runc"
    # The daemon does have this runtime: only the name of its program is not what tells.
    wrapper = {runtime: ("/opt/wrapper", *info.runtimes[runtime][1:])}
    provider.daemon._info = replace(info, runtimes={**info.runtimes, **wrapper})
    if runtime == "runc":
        with pytest.raises(ConfigurationError, match=r"isolation='gvisor'.*runc"):
            await boxes.start(provider, isolation=isolation)
        return
    box = await boxes.start(provider, **({"isolation": isolation} if isolation else {}))
    assert len(containers(tag)) == 1
    status, said, _ = await box.run("sh", "-c", "uname -r; id -u")
    kernel, uid = said.split()
    assert (status, kernel) == (0, "4.4.0")
    assert uid != "0"


def test_what_gvisor_cannot_do_is_refused() -> None:
    with Session("docker", isolation="gvisor") as session:
        mounts, strict = {"/data": "volume:v"}, {"profile": "strict", "reuse": "reset"}
        # Any: options of every type.
        cases: list[dict[str, Any]] = [{"user": "root"}, {"pids": 64}, {"mounts": mounts}, strict]
        for options in cases:
            with pytest.raises(ConfigurationError, match=f"cannot honour {[*options][-1]}="):
                session.sandbox(**options)
        with pytest.raises(ConfigurationError, match="isolation='gvisor'"):
            session.sandbox().snapshot().result(30)


def test_a_session_with_gvisor_runs_in_its_kernel_and_nothing_as_root() -> None:
    require_gvisor()
    with Session("docker", isolation="gvisor", profile="strict") as session:
        sandbox = session.sandbox()
        assert "4.4.0" in sandbox.exec(["uname", "-r"], check=True).result(60).stdout
        assert sandbox.exec(["id", "-u"]).result(60).stdout.strip() != "0"
        # Each stream can be opened by its name, although gVisor's pipes have no modes.
        assert sandbox.exec(["sh", "-c", "echo x > /dev/stderr"]).result(60).stderr == "x\n"
        with pytest.raises(SandboxError, match="nothing runs as the agent's user"):
            sandbox.exec(["true"], user="root").result(60)
        # The root is read-only, and what may be written is bounded.
        assert sandbox.exec(["sh", "-c", "echo x > /usr/x"]).result(60).returncode != 0


def test_the_doctor_starts_a_sandbox_with_gvisor() -> None:
    require_gvisor()
    provider = DockerProvider()
    found = Operation(provider.diagnose()).result(120)
    Operation(provider.aclose()).result(30)
    assert "gVisor is the runtime 'runsc', in which a sandbox starts and ends in " in found.detail


def test_a_sandbox_with_gvisor_starts_from_a_snapshot_but_as_nobody_who_is_root() -> None:
    require_gvisor()
    with Session("docker", user="root", network="none") as plain:
        before = plain.sandbox()
        script = "echo kept >/kept; echo toor:x:0:0::/:/bin/sh >>/etc/passwd"
        before.exec(["sh", "-c", script], check=True).result(60)
        snapshot = before.snapshot(ttl=600).result(60)
    try:
        with Session("docker", isolation="gvisor", snapshot=snapshot) as session:
            sandbox = session.sandbox()
            assert sandbox.exec(["cat", "/kept"]).result(60).stdout == "kept\n"
            with pytest.raises(ConfigurationError, match="isolation='gvisor'"):
                sandbox.snapshot().result(60)
            with pytest.raises(SandboxError, match="nothing runs as root"):
                session.sandbox(user="toor").exec(["true"]).result(60)
    finally:
        snapshot.delete().result(60)


def test_an_end_by_a_signal_from_outside_is_not_of_the_commands() -> None:
    assert ended_itself("its agent was killed (exit status 2)")
    assert not ended_itself("its agent was killed (exit status 137)")
    assert not ended_itself("it ran out of memory; raise memory_mb")
