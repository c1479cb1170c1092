"""Containers made, listed, found from elsewhere and removed."""

import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session, errors
from sandboxkit._life._owners import is_expired
from sandboxkit.provider import StreamName
from sandboxkit.providers._agent import binary
from sandboxkit.providers.docker import DockerProvider, _loaders
from sandboxkit.types import Command, SandboxSpec, SandboxState
from tests.components import require_program
from tests.docker.boxes import Box, Containers
from tests.docker.conftest import PROGRAMS, SOCKET, client, docker, listed, until_gone
from tests.docker_here import TEST_IMAGE
from tests.faults import FaultProxy
from tests.traces import assert_forgotten

pytestmark = pytest.mark.anyio


async def test_everything_works_over_tls_as_the_environment_says(
    boxes: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_program("openssl")
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", *request.split(), *names]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with FaultProxy(f"unix://{SOCKET}", listen="tcp", tls=context) as proxy:
        given = {"HOST": proxy.url, "TLS_VERIFY": "1", "CERT_PATH": str(tmp_path)}
        for name, value in given.items():
            monkeypatch.setenv(f"DOCKER_{name}", value)
        assert await (await boxes.start()).python("print(6 * 7)") == "42"
        await boxes.close()


async def test_others_containers_are_neither_listed_nor_deleted(
    provider: DockerProvider, tag: str
) -> None:
    name = f"not-a-sandbox-of-ours-{tag}"
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    docker("create", "--name", name, "--label", "sandboxkit=1", image)
    try:
        assert name not in [info.id async for info in provider.list({})]
        await provider.box(name).delete()
        with pytest.raises(errors.SandboxNotFoundError):
            await provider.box(name).info()
        assert docker("inspect", name)
    finally:
        docker("rm", "--force", name)


@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2])
async def test_cancelled_starts_leave_none(
    provider: DockerProvider, tag: str, after: float
) -> None:
    await provider.daemon.info()
    with anyio.move_on_after(after):
        await (await provider.create(SandboxSpec(tags={"test": tag}))).delete()
    assert await listed(provider, tag) == []


async def test_failing_creates_say_why_and_leave_nothing(
    provider: DockerProvider, tag: str
) -> None:
    with pytest.raises(errors.SandboxStartError):
        await provider.create(SandboxSpec(tags={"test": tag}, user="nobody-knows-me"))
    with pytest.raises((errors.ConfigurationError, errors.SandboxStartError)):
        await provider.create(SandboxSpec(tags={"test": tag}, cpus=4096.0))
    unknown = DockerProvider(runtime="no-such-runtime")
    with pytest.raises(errors.SandboxError, match="no-such-runtime"):
        await unknown.create(SandboxSpec(tags={"test": tag}))
    assert await listed(provider, tag) == []
    assert not (await unknown.diagnose()).available


@pytest.fixture
def own_agent(tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another agent than that of whoever else uses the daemon, so that its volume is ours alone."""
    path = tmp_path / "agent"
    path.write_bytes(binary.path().read_bytes() + tag.encode())
    monkeypatch.setattr(binary, "path", lambda _: path)


async def test_a_removed_agent_volume_is_filled_again(boxes: Containers, own_agent: None) -> None:
    provider = boxes.provider()
    await (await boxes.start(provider)).inner.delete()
    volume = (await provider.agent.ensure("unused")).name
    for state in ("absent", "empty"):
        docker("volume", "rm", volume)
        if state == "empty":
            docker("volume", "create", volume)
        box = await boxes.start(provider)
        assert await box.python("print(1)") == "1"
        await box.inner.delete()
    docker("volume", "rm", volume)


async def test_a_loader_of_a_client_that_was_killed_goes_with_the_next_fill(
    provider: DockerProvider, tag: str, own_agent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loaders, "_LOADED_WITHIN", 0)
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    name, other = f"sandboxkit-loader-{tag}", f"somebody-elses-{tag}"
    for each in (name, other):
        docker("create", "--name", each, "--label", "sandboxkit.loader=", image)
    await anyio.sleep(1.1)  # the daemon tells whole seconds
    volume = (await provider.agent.ensure(image)).name
    left = docker("ps", "-a", "--format", "{{.Names}}")
    docker("rm", other)
    docker("volume", "rm", volume)
    assert name not in left
    assert other in left


@pytest.mark.parametrize(
    ("how", "expected"), [("kill", "agent was killed.*through Docker"), ("delete", "deleted")]
)
async def test_commands_say_how_it_ended(boxes: Containers, how: str, expected: str) -> None:
    box = await boxes.start(memory_mb=64)
    # An earlier end for want of memory does not explain a later one.
    assert (await box.run("python", "-c", "b = bytearray(1 << 30)"))[0] == 137
    running = anyio.Event()

    async def output(stream: StreamName, chunk: bytes) -> None:
        running.set()

    async def die() -> None:
        command = Command(argv=("sh", "-c", "echo running; sleep 60"))
        with pytest.raises(errors.SandboxTerminatedError, match=expected) as caught:
            await box.inner.exec(command, output)
        assert not caught.value.out_of_memory

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(die)
        await running.wait()
        if how == "delete":
            await box.inner.delete()
        else:
            await anyio.run_process(["docker", "kill", box.id])


async def test_a_detached_sandbox_outlives_its_process(provider: DockerProvider, tag: str) -> None:
    box = provider.box(client(PROGRAMS["detached"], tag).communicate(timeout=60)[0].strip())
    await anyio.sleep(1)
    assert await Box(box).python("print('alive')") == "alive"
    assert (await box.info()).state is SandboxState.RUNNING
    await box.renew(1.0)
    await until_gone(provider, tag)


async def test_a_killed_guest_takes_its_command_and_nothing_else(box: Box) -> None:
    process = client(PROGRAMS["guest"], box.id)
    assert process.stdout is not None
    assert await anyio.to_thread.run_sync(process.stdout.readline) == "running\n"
    process.kill()
    process.communicate()
    with anyio.fail_after(60):
        while "sleep 4321" in (ps := (await box.run("ps", "-ef"))[1]) or "connect" in ps:
            await anyio.sleep(0.05)


async def test_a_renewed_sandbox_has_not_expired(provider: DockerProvider, tag: str) -> None:
    """Labels say a container's first end for ever; one that runs after that was renewed."""
    for seconds in (3, 30):  # a busy machine may take longer than that to start it
        expires = time.time() + seconds
        tags = {"test": tag, "sandboxkit.expires": f"{expires:.3f}"}
        box = await provider.create(SandboxSpec(tags=tags, lifetime=60))
        if (await box.info()).expires_at is not None:
            break
        await box.delete()
    await box.renew(600)
    await anyio.sleep(expires - time.time() + 0.5)  # until that moment has passed
    [info] = await listed(provider, tag)
    assert info.expires_at is None
    assert not is_expired(info)
    await box.delete()


@pytest.fixture
def image(daemon: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """An image of a user whose home nobody else may enter, without /workspace, or as a test changes that."""
    name = "sandboxkit-tests/of-a-user"
    add = "useradd --create-home --uid 1234 app && chmod 700 /home/app && rm -rf /workspace"
    add += getattr(request, "param", "")
    recipe = f"FROM {TEST_IMAGE}\nRUN {add}\nUSER app\n".encode()
    build = ["docker", "build", "--quiet", "--tag", name, "-"]
    subprocess.run(build, input=recipe, capture_output=True, check=True)
    yield name
    docker("rmi", "--force", name)


def test_the_workdir_belongs_to_the_user(image: str) -> None:
    with Session("docker", image=image) as session:
        for given in (None, "/home/app/work", "/home/app/a/b", "/srv/work"):
            sandbox, found = session.sandbox(workdir=given), given or "/workspace"
            script = "touch file && id -un && pwd"
            assert sandbox.exec(["sh", "-c", script]).result(30).stdout == f"app\n{found}\n"
            assert sandbox.workdir().result(30) == found
        with pytest.raises(errors.SandboxStartError, match=r"/etc/passwd/work.*app"):
            session.sandbox(workdir="/etc/passwd/work").start().result(30)


@pytest.mark.parametrize("image", [" && touch /workspace"], indirect=True)
def test_no_workdir_belongs_to_the_agent(image: str) -> None:
    with Session("docker", image=image, user="nobody") as session:  # whose home is /nonexistent
        done = session.run(["sh", "-c", "touch file && pwd"]).result(30)
        assert (done.stdout, done.stderr) == ("/tmp/workspace\n", "")


async def test_a_busy_program_past_its_share_was_throttled(boxes: Containers) -> None:
    # So little of a processor that a busy machine's own slowness is more than that.
    box = await boxes.start(cpus=0.1)

    async def ignore(stream: StreamName, chunk: bytes) -> None: ...

    # Ten of the shares of a tenth of a second, however long it stands still meanwhile.
    code = "import time\nwhile time.process_time() < 0.13: pass"
    with anyio.fail_after(60):
        done = await box.inner.exec(Command(("python", "-c", code)), ignore)
    assert done.usage.throttled_seconds is not None
    assert 0 < done.usage.throttled_seconds < 60


def test_a_program_that_forgets_to_close_leaves_nothing(tag: str) -> None:
    command = [sys.executable, "-c", PROGRAMS["forgets_to_close"], tag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
async def test_no_state_is_kept_of_ended_sandboxes(daemon: None, count: int) -> None:
    await assert_forgotten(DockerProvider, count, memory_mb=64)
