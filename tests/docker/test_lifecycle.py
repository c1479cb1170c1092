"""Containers made, listed, found from elsewhere and removed."""

import os
import ssl
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from sandboxkit._owners import is_expired
from sandboxkit.errors import (
    ConfigurationError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import StreamName
from sandboxkit.providers._agent import binary
from sandboxkit.providers.docker import DockerProvider, _loaders
from sandboxkit.types import Command, SandboxSpec, SandboxState
from tests.components import require_program
from tests.docker.conftest import SOCKET, Box, client, listed, until_gone
from tests.docker.tcp_bridge import TcpBridge

pytestmark = pytest.mark.anyio


async def test_everything_works_over_tcp(bridge: TcpBridge, tag: str) -> None:
    provider = DockerProvider(base_url=bridge.url)
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
    other = DockerProvider(base_url=bridge.url)
    try:
        assert await Box(provider, sandbox_id).python("print(6 * 7)") == "42"
        assert await Box(other, sandbox_id).python("print(7 * 7)") == "49"
        assert [info.id for info in await listed(other, tag)] == [sandbox_id]
    finally:
        await provider.delete(sandbox_id)
        await other.aclose()
        await provider.aclose()
    assert bridge.connections >= 4


async def test_everything_works_over_tls(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_program("openssl")
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *request.split(), *names], cwd=tmp_path, check=True, capture_output=True
    )
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with TcpBridge(SOCKET, context) as bridge:
        monkeypatch.setenv("DOCKER_HOST", bridge.url)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        provider = DockerProvider()
        sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
        assert await Box(provider, sandbox_id).python("print(6 * 7)") == "42"
        await provider.delete(sandbox_id)
        await provider.aclose()


async def test_docker_host_in_the_environment_is_used(
    bridge: TcpBridge, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", bridge.url)
    assert await listed(DockerProvider(), tag) == []
    assert bridge.connections > 0


async def test_tags_are_labels_whatever_they_contain(provider: DockerProvider, tag: str) -> None:
    tags = {"test": tag, "run": "a=b,c d/ü🎈", "flag": "", "path/like.key": "x"}
    sandbox_id = await provider.create(SandboxSpec(tags=tags))
    try:
        for key, value in tags.items():
            found = [info async for info in provider.list({"test": tag, key: value})]
            assert [info.id for info in found] == [sandbox_id]
        assert [info async for info in provider.list({"test": tag, "run": "a"})] == []
        (info,) = await listed(provider, tag)
        assert info.tags == tags
        assert info.state is SandboxState.RUNNING
        assert (await provider.get(sandbox_id)) == info
    finally:
        await provider.delete(sandbox_id)


async def test_other_peoples_containers_are_neither_listed_nor_deleted(
    provider: DockerProvider, tag: str
) -> None:
    name = f"not-a-sandbox-of-ours-{tag}"
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    subprocess.run(
        ["docker", "create", "--name", name, "--label", "sandboxkit=1", image],
        check=True,
        capture_output=True,
    )
    try:
        assert name not in [info.id async for info in provider.list({})]
        await provider.delete(name)
        with pytest.raises(SandboxNotFoundError):
            await provider.get(name)
        inspected = subprocess.run(["docker", "inspect", name], capture_output=True)
        assert inspected.returncode == 0
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2])
async def test_a_cancelled_create_leaves_nothing(
    provider: DockerProvider, tag: str, after: float
) -> None:
    await provider._daemon.info()
    with anyio.move_on_after(after):
        await provider.delete(await provider.create(SandboxSpec(tags={"test": tag})))
    assert await listed(provider, tag) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"user": "nobody-knows-me"}, SandboxStartError),
        ({"cpus": 4096.0}, (ConfigurationError, SandboxStartError)),
    ],
)
async def test_a_failing_create_says_why_and_leaves_nothing(
    provider: DockerProvider,
    tag: str,
    options: dict[str, object],
    error: type[SandboxError],
) -> None:
    with pytest.raises(error):
        await provider.create(SandboxSpec(tags={"test": tag}, **options))  # type: ignore[arg-type]  # one type per field
    assert await listed(provider, tag) == []


async def test_an_unknown_runtime_is_named(tag: str) -> None:
    provider = DockerProvider(runtime="no-such-runtime")
    with pytest.raises(SandboxError, match="no-such-runtime"):
        await provider.create(SandboxSpec(tags={"test": tag}))
    assert await listed(provider, tag) == []
    assert not (await provider.diagnose()).available


async def test_a_removed_agent_volume_is_filled_again(
    provider: DockerProvider, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another agent than that of whoever else uses the daemon, so that its volume is ours alone.
    path = tmp_path / "agent"
    path.write_bytes(binary.path().read_bytes() + tag.encode())
    monkeypatch.setattr(binary, "path", lambda _: path)
    await provider.delete(await provider.create(SandboxSpec(tags={"test": tag})))
    volume = (await provider._agent.ensure("unused")).name
    for state in ("absent", "empty"):
        subprocess.run(["docker", "volume", "rm", volume], check=True, capture_output=True)
        if state == "empty":
            subprocess.run(["docker", "volume", "create", volume], check=True, capture_output=True)
        sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
        assert await Box(provider, sandbox_id).python("print(1)") == "1"
        await provider.delete(sandbox_id)
    subprocess.run(["docker", "volume", "rm", volume], check=True, capture_output=True)


async def test_a_loader_of_a_client_that_was_killed_goes_with_the_next_fill(
    provider: DockerProvider, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent"
    path.write_bytes(binary.path().read_bytes() + tag.encode())
    monkeypatch.setattr(binary, "path", lambda _: path)
    monkeypatch.setattr(_loaders, "_LOADED_WITHIN", 0)
    image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
    name = f"sandboxkit-loader-{tag}"
    label = ["--label", "sandboxkit.loader="]
    subprocess.run(["docker", "create", "--name", name, *label, image], check=True)
    other = f"somebody-elses-{tag}"
    subprocess.run(["docker", "create", "--name", other, *label, image], check=True)
    await anyio.sleep(1.1)  # the daemon tells whole seconds
    volume = (await provider._agent.ensure(image)).name
    left = subprocess.run(["docker", "ps", "-a", "--format", "{{.Names}}"], capture_output=True)
    subprocess.run(["docker", "rm", other], check=True)
    subprocess.run(["docker", "volume", "rm", volume], check=True)
    assert name not in left.stdout.decode().split()
    assert other in left.stdout.decode().split()


async def test_an_earlier_out_of_memory_does_not_explain_a_later_kill(
    provider: DockerProvider, tag: str
) -> None:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}, memory_mb=64))
    box = Box(provider, sandbox_id)
    status, _, _ = await box.run("python", "-c", "b = bytearray(1 << 30)")
    assert status == 137
    running = anyio.Event()

    async def output(stream: StreamName, chunk: bytes) -> None:
        running.set()

    async with anyio.create_task_group() as tasks:

        async def told() -> None:
            command = Command(("sh", "-c", "echo running; sleep 600"))
            with pytest.raises(SandboxTerminatedError, match="through Docker") as caught:
                await provider.exec(sandbox_id, command, output)
            assert not caught.value.out_of_memory

        tasks.start_soon(told)
        await running.wait()
        await anyio.run_process(["docker", "kill", sandbox_id])


@pytest.mark.parametrize(("how", "expected"), [("kill", "agent was killed"), ("delete", "deleted")])
async def test_a_command_reports_how_its_sandbox_ended(
    provider: DockerProvider, box: Box, how: str, expected: str
) -> None:
    running = anyio.Event()

    async def output(stream: StreamName, chunk: bytes) -> None:
        running.set()

    async def die() -> None:
        command = Command(argv=("sh", "-c", "echo running; sleep 60"))
        with pytest.raises(SandboxTerminatedError, match=expected):
            await provider.exec(box.id, command, output)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(die)
        await running.wait()
        if how == "delete":
            await provider.delete(box.id)
        else:
            await anyio.run_process(["docker", "kill", box.id])


async def test_twenty_sandboxes_of_a_killed_process_are_gone_before_a_grace(
    provider: DockerProvider, tag: str
) -> None:
    process = client(
        """
async with anyio.create_task_group() as tasks:
    for _ in range(20):
        tasks.start_soon(provider.create, SandboxSpec(tags={"test": sys.argv[1]}))
async def ignore(stream, chunk): ...
found = [info.id async for info in provider.list({"test": sys.argv[1]})]
command = Command(argv=("sh", "-c", "setsid sleep 1000 & trap '' TERM HUP; sleep 999"))
async with anyio.create_task_group() as tasks:
    tasks.start_soon(provider.exec, found[0], command, ignore)
    await anyio.sleep(0.3)
    print("all", flush=True)
    await anyio.sleep(1000)
""",
        tag,
    )
    assert process.stdout is not None
    while (line := await anyio.to_thread.run_sync(process.stdout.readline)).strip() != "all":
        assert line, "the client failed"
    assert len(await listed(provider, tag)) == 20
    process.kill()
    process.wait()
    await until_gone(provider, tag, within=20)  # the grace of a link through the daemon is 30 s
    process.communicate()


async def test_a_detached_sandbox_outlives_its_process_until_its_lifetime(
    provider: DockerProvider, tag: str
) -> None:
    process = client(
        """
spec = SandboxSpec(tags={"test": sys.argv[1]}, detach=True, lifetime=60.0)
print(await provider.create(spec), flush=True)
""",
        tag,
    )
    sandbox_id = process.communicate(timeout=60)[0].strip()
    await anyio.sleep(1)
    box = Box(provider, sandbox_id)
    assert await box.python("print('alive')") == "alive"
    assert (await provider.get(sandbox_id)).state is SandboxState.RUNNING
    await provider.renew(sandbox_id, 1.0)
    await until_gone(provider, tag)


async def test_a_killed_guest_takes_its_command_and_nothing_else(
    provider: DockerProvider, box: Box
) -> None:
    process = client(
        """
async def show(stream, chunk): print(chunk.decode(), end="", flush=True)
command = Command(argv=("sh", "-c", "echo running; exec sleep 4321"))
await provider.exec(sys.argv[1], command, show)
""",
        box.id,
    )
    assert process.stdout is not None
    assert await anyio.to_thread.run_sync(process.stdout.readline) == "running\n"
    process.kill()
    process.communicate()
    with anyio.fail_after(60):
        while "sleep 4321" in (ps := (await box.run("ps", "-ef"))[1]) or "connect" in ps:
            await anyio.sleep(0.05)


async def test_starts_beyond_the_limit_wait_their_turn(provider: DockerProvider, tag: str) -> None:
    ids: list[str] = []

    async def one() -> None:
        ids.append(await provider.create(SandboxSpec(tags={"test": tag})))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(one)
    assert len({info.id for info in await listed(provider, tag)}) == 10
    async with anyio.create_task_group() as tasks:
        for sandbox_id in ids:
            tasks.start_soon(provider.delete, sandbox_id)
    assert await listed(provider, tag) == []


async def test_a_renewed_sandbox_is_not_taken_for_expired(
    provider: DockerProvider, tag: str
) -> None:
    """Labels say a container's first end for ever; one that runs after that was renewed."""
    for seconds in (3, 30):  # a busy machine may take longer than that to start it
        expires = time.time() + seconds
        tags = {"test": tag, "sandboxkit.expires": f"{expires:.3f}"}
        sandbox_id = await provider.create(SandboxSpec(tags=tags, lifetime=60))
        if (await provider.get(sandbox_id)).expires_at is not None:
            break
        await provider.delete(sandbox_id)
    await provider.renew(sandbox_id, 600)
    await anyio.sleep(expires - time.time() + 0.5)  # until that moment has passed
    [info] = await listed(provider, tag)
    assert info.expires_at is None
    assert not is_expired(info)
    await provider.delete(sandbox_id)
