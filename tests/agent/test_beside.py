"""The agent as one process among others of a vendor's machine, and what leads to it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._agent import binary
from sandboxkit.providers._hosted import install
from sandboxkit.types import Command, SandboxSpec
from tests import process_list
from tests.agent.conftest import Run
from tests.agent.machines import Machines, Program
from tests.components import needs_mounts

pytestmark = [
    pytest.mark.anyio,
    needs_mounts("machines with users of their own"),
]

# Folders of the machine's own, so that the tests' machines share no agent.
OWN_FOLDERS = "mount -t tmpfs none /usr/local/bin && mount -t tmpfs none /dev/shm && mount -t tmpfs none /root"


@pytest.fixture
async def machines(anyio_backend: str) -> AsyncIterator[Machines]:
    machines = Machines(OWN_FOLDERS)
    yield machines
    # A machine that a test has halted is in no list, and may have programs that wait to be reaped.
    programs = {program.sandbox_id for program in machines.programs}
    for sandbox_id in {*machines.processes, *programs}:
        await machines.delete(sandbox_id)


async def sh(machines: Machines, sandbox_id: str, script: str, **options: object) -> Run:
    run = Run()
    command = Command(("sh", "-c", script), **options)  # type: ignore[arg-type]  # a shorthand
    run.exit = await machines.exec(sandbox_id, command, run.output)
    run.status = run.exit.status
    return run


async def listed(machines: Machines, sandbox_id: str) -> list[process_list.Listed]:
    """The machine's processes."""
    return process_list.parse(
        await output_of(await machines.program(sandbox_id, *process_list.COMMAND))
    )


async def output_of(program: Program) -> bytes:
    out = b""
    with anyio.fail_after(60):
        try:
            while True:
                out += await program.receive()
        except anyio.EndOfStream:
            return out


async def agent_of(machines: Machines, sandbox_id: str) -> int:
    """Its number inside."""
    # Its reapers share its memory, command line and all: it is the first.
    return min(
        each.pid
        for each in await listed(machines, sandbox_id)
        if each.args.startswith("sandboxkit-agent -beside")
    )


@pytest.mark.parametrize("user", ["nobody", None])
async def test_a_kill_ends_the_whole_command_and_no_other(
    machines: Machines, user: str | None, tmp_path: Path
) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp", user=user))
    as_user = ["setpriv", "--reuid=nobody", "--clear-groups"] if user else []
    neighbour = await machines.program(sandbox_id, *as_user, "sleep", "987")
    script = (
        "(setsid sh -c 'sleep 985 & exec sleep 986' &) ; setsid sleep 984 & "
        + ("kill -9 $PPID; " if user is None else "")
        + "echo on; sleep 983"
    )
    run = Run()
    with anyio.move_on_after(60) as scope:
        async with anyio.create_task_group() as group:

            async def command() -> None:
                await machines.exec(sandbox_id, Command(("sh", "-c", script)), run.output)

            group.start_soon(command)
            await run.started.wait()
            await anyio.sleep(0.3)
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    living = " ".join(each.args for each in await listed(machines, sandbox_id))
    assert "sleep 987" in living
    assert "sleep 98" not in living.replace("sleep 987", "")
    assert (await sh(machines, sandbox_id, "echo still")).stdout == b"still\n"
    await neighbour.aclose()


async def test_background_processes_outlive_their_command(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    await sh(machines, sandbox_id, "sleep 977 >/dev/null 2>&1 &")
    assert any("sleep 977" in each.args for each in await listed(machines, sandbox_id))


async def test_commands_continue_after_the_link_breaks(machines: Machines, tmp_path: Path) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir=str(tmp_path)))
    run = Run()
    script = "echo x >> started; for i in $(seq 40); do echo line $i; sleep 0.05; done; exit 5"

    async def breaks() -> None:
        await run.started.wait()
        for _ in range(5):
            machines.links[-1].kill()
            await anyio.sleep(0.3)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(breaks)
            run.exit = await machines.exec(sandbox_id, Command(("sh", "-c", script)), run.output)
    assert run.exit.status == 5
    assert run.stdout.decode().splitlines() == [f"line {i}" for i in range(1, 41)]
    assert (tmp_path / "started").read_text() == "x\n"


async def test_a_command_that_kills_the_agent_has_ended_its_sandbox(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    agents = "grep -ls '^sandboxkit-agent' /proc/[0-9]*/cmdline"
    script = f"kill -9 $({agents} | cut -d / -f 3); sleep 60"
    for attempt in (script, "true"):
        with anyio.fail_after(60), pytest.raises(SandboxTerminatedError) as caught:
            await sh(machines, sandbox_id, attempt)
        assert caught.value.by_command
        assert "a program in it ended its agent" in str(caught.value)


async def test_a_restarted_machine_is_an_infrastructure_error(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    await machines.halt(sandbox_id)
    await asyncio.sleep(0.05)  # a start is told from another by the kernel's ticks
    await machines.boot(sandbox_id)
    with anyio.fail_after(60), pytest.raises(SandboxTerminatedError) as caught:
        await sh(machines, sandbox_id, "true")
    assert not caught.value.by_command
    assert "restarted it" in str(caught.value)


async def test_a_machine_that_is_gone_has_ended(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    run = Run()

    async def halts() -> None:
        await run.started.wait()
        await machines.halt(sandbox_id)

    ended: list[SandboxTerminatedError] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(halts)
            try:
                await machines.exec(
                    sandbox_id, Command(("sh", "-c", "echo on; sleep 60")), run.output
                )
            except SandboxTerminatedError as error:
                ended.append(error)
    assert [error.by_command for error in ended] == [False]


async def test_a_process_with_the_name_of_a_dead_agent_gets_no_data(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp", user="nobody"))
    pid = await agent_of(machines, sandbox_id)
    await output_of(await machines.program(sandbox_id, "sh", "-c", f"kill -9 {pid}"))
    listen = (
        "import socket, time\ns = socket.socket(socket.AF_UNIX)\n"
        # The killed agent has its name until it has ended.
        f"while True:\n    try: s.bind('\\0sandboxkit-{sandbox_id}'); break\n    except OSError: pass\n"
        "s.listen(); print('on', flush=True); time.sleep(1000)"
    )
    impostor = await machines.program(
        sandbox_id, "setpriv", "--reuid=nobody", "--clear-groups", "/usr/bin/python3", "-c", listen
    )
    assert (await impostor.receive()).startswith(b"on")
    with anyio.fail_after(60), pytest.raises(SandboxTerminatedError, match="not of this user"):
        await sh(machines, sandbox_id, "true")
    await impostor.aclose()


async def test_commands_of_another_user_cannot_reach_the_agent(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp", user="nobody"))
    pid = await agent_of(machines, sandbox_id)
    run = await sh(
        machines,
        sandbox_id,
        f"kill -9 {pid}; cat /proc/{pid}/environ /proc/{pid}/mem; "
        f'/usr/bin/python3 -c "import socket; s = socket.socket(socket.AF_UNIX); '
        f"s.connect('\\0sandboxkit-{sandbox_id}'); s.send(b'x' * 40); print(s.recv(9))\"",
    )
    assert b"b''" in run.stdout or run.stdout == b""
    assert (await sh(machines, sandbox_id, "echo on")).stdout == b"on\n"


async def test_a_command_of_the_agents_user_cannot_lower_its_limits(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    pid = await agent_of(machines, sandbox_id)
    await sh(machines, sandbox_id, f"prlimit --pid {pid} --nofile=3:3")
    assert (await sh(machines, sandbox_id, "echo on")).stdout == b"on\n"


async def test_another_process_reuses_the_running_agent(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    other = Machines()
    other.processes, other.programs = machines.processes, machines.programs
    assert (await sh(other, sandbox_id, "echo other")).stdout == b"other\n"
    pid = await agent_of(machines, sandbox_id)
    await other._forget(sandbox_id)
    outside = await _outside(machines, sandbox_id, pid)
    os.kill(outside, signal.SIGKILL)
    with anyio.fail_after(60):
        while any("-beside" in each.args for each in await listed(machines, sandbox_id)):
            await anyio.sleep(0.01)
    unknown = Machines()
    unknown.processes, unknown.programs = machines.processes, machines.programs
    with anyio.fail_after(60), pytest.raises(ProviderUnavailableError, match="has no agent"):
        await sh(unknown, sandbox_id, "true")


async def _outside(machines: Machines, sandbox_id: str, inside: int) -> int:
    """The number out here of a process inside."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        numbers = next((x for x in status.splitlines() if x.startswith("NSpid:")), "").split()
        if sandbox_id.encode() in line and numbers[-1:] == [str(inside)]:
            return int(folder.name)
    raise AssertionError("no such process")


def with_agent(folder: Path) -> Machines:
    """Machines whose image has the agent, which is not sent to a second one."""
    baked = folder / "agent"
    baked.write_bytes(binary.path().read_bytes())
    name = install.baked_name()
    return Machines(
        f"{OWN_FOLDERS} && cp {baked} /usr/local/bin/{name} && chmod 755 /usr/local/bin/{name}"
    )


async def sent_with_starts(machines: Machines, times: int) -> list[int]:
    """Start sandboxes one after the other; the bytes that go to each program first."""
    for _ in range(times):
        await machines.delete(await machines.create(SandboxSpec(workdir="/tmp")))
    return [link.sizes[0] for link in machines.links]


async def test_an_existing_copy_of_the_agent_is_not_sent_again(
    anyio_backend: str, tmp_path: Path
) -> None:
    first, second = await sent_with_starts(with_agent(tmp_path), 2)
    assert first > len(install.data_of(install.LIKELY))
    assert second < 1000


async def test_the_agent_and_its_first_message_are_sent_together(
    machines: Machines,
) -> None:
    first, second = await sent_with_starts(machines, 2)
    assert first == second > len(install.data_of(install.LIKELY))


async def test_another_architecture_gets_its_own_agent(machines: Machines) -> None:
    ours = install.baked_name() == install.baked_name("amd64")
    machines._assumed_agents[""] = "arm64" if ours else "amd64"
    first, again, second = await sent_with_starts(machines, 2)
    assert first != again == second


GREEDY_HEAD = """
cat >/dev/shm/head <<'END'
#!/usr/bin/python3
import os, sys
due = int(sys.argv[2])
while due > 0:
    data = os.read(0, 4096)
    sys.stdout.buffer.write(data[:due])
    due -= len(data)
END
chmod 755 /dev/shm/head && mount --bind /dev/shm/head /usr/bin/head
"""


async def test_a_head_that_reads_ahead_loses_no_bytes(
    anyio_backend: str,
) -> None:
    machines = Machines(OWN_FOLDERS + GREEDY_HEAD.rstrip())
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    try:
        assert (await sh(machines, sandbox_id, "echo ok")).stdout == b"ok\n"
    finally:
        await machines.delete(sandbox_id)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's home, whoever's the tests have."""
    monkeypatch.setenv("HOME", "/root")


NOEXEC = "for d in /usr/local/bin /root /dev/shm; do mount -t tmpfs -o noexec none $d; done"


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (NOEXEC, "none of /usr/local/bin, .* takes a program that can be run"),
        (OWN_FOLDERS + " && mount -t tmpfs -o size=512k none /usr/local/bin", "is the disk full"),
        (OWN_FOLDERS + " && mount --bind /dev/null /usr/bin/gzip && mount --bind /dev/null /bin/gzip", "no gzip"),
        (OWN_FOLDERS + " && mount --bind /bin/false /usr/bin/uname", "no agent for"),
    ],
)  # fmt: skip
async def test_a_machine_that_cannot_run_the_agent_says_why(
    anyio_backend: str, prepare: str, why: str
) -> None:
    machines = Machines(prepare)
    try:
        with anyio.fail_after(60), pytest.raises(SandboxStartError, match=why):
            await machines.create(SandboxSpec(workdir="/tmp"))
    finally:
        for sandbox_id in list(machines.processes):
            await machines.delete(sandbox_id)


async def test_an_agent_that_cannot_start_says_why(machines: Machines) -> None:
    with anyio.fail_after(60), pytest.raises(SandboxStartError, match="nosuchuser"):
        await machines.create(SandboxSpec(workdir="/tmp", user="nosuchuser"))


async def test_output_of_the_image_before_the_agent_is_ignored(machines: Machines) -> None:
    class Chatty(Machines):
        async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> Program:
            noise = "printf 'Welcome to \\036 this machine\\n'; exec \"$@\""
            return await self.program(sandbox_id, "sh", "-c", noise, "sh", *argv)

    chatty = Chatty(OWN_FOLDERS)
    sandbox_id = await chatty.create(SandboxSpec(workdir="/tmp"))
    try:
        assert (await sh(chatty, sandbox_id, "echo on")).stdout == b"on\n"
    finally:
        await chatty.delete(sandbox_id)


async def test_a_stream_that_breaks_before_the_greeting_is_an_infrastructure_error(
    machines: Machines,
) -> None:
    class Broken(Program):
        async def receive(self, max_bytes: int = 65536) -> bytes:
            raise anyio.BrokenResourceError

    class Breaking(Machines):
        async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> Program:
            program = await self.program(sandbox_id, *argv)
            program.__class__ = Broken
            return program

    breaking = Breaking(OWN_FOLDERS)
    with pytest.raises(ProviderUnavailableError, match="before its agent replied"):
        await breaking.create(SandboxSpec(workdir="/tmp"))
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    breaking.processes = machines.processes
    with pytest.raises(ProviderUnavailableError, match="before its agent replied"):
        await sh(breaking, sandbox_id, "true")
    for program in breaking.programs:
        await program.aclose()


async def test_root_keeps_the_rights_that_the_vendor_gives(machines: Machines) -> None:
    """Install packages, above all; the agent's own protection is another user for commands."""
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp", user="nobody"))
    script = "f=$(mktemp); chown {who} $f && stat -c %U $f; rm -f $f; grep CapEff /proc/self/status"
    run = await sh(machines, sandbox_id, script.format(who="nobody"), user="root")
    owner, capabilities = run.stdout.split(b"\n", 1)
    assert owner == b"nobody"
    assert int(capabilities.split()[1], 16) & 0xFF == 0xFF
    run = await sh(machines, sandbox_id, script.format(who="root"))
    assert run.stdout.split() == [b"CapEff:", b"0000000000000000"]


async def test_the_agent_is_not_a_child_of_the_starting_call(machines: Machines) -> None:
    sandbox_id = await machines.create(SandboxSpec(workdir="/tmp"))
    pid = await agent_of(machines, sandbox_id)
    assert [each.parent for each in await listed(machines, sandbox_id) if each.pid == pid] == [1]
