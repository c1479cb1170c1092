"""The agent as one process among others of a vendor's machine, whose programs may all be of one user."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import ProviderUnavailableError, SandboxStartError, SandboxTerminatedError
from sandboxkit.providers._agent import binary, box
from sandboxkit.providers._agent import client as connection
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.types import SandboxSpec
from tests.agent.conftest import PROGRAMS, Run, at_start, until
from tests.agent.machines import OWN_FOLDERS, Machine, MachineBox, Machines, Program, started
from tests.components import needs_mounts

pytestmark = [pytest.mark.anyio, needs_mounts("machines with users of their own")]


class VendorMachines(Machines):
    """Machines of a vendor whose daemon dies and comes back, and whose images greet."""

    def __init__(self, prepare: str = OWN_FOLDERS) -> None:
        super().__init__(prepare, _VendorBox)
        self.dead = False
        self.greets = ""
        self.awake = anyio.Event()
        self.awake.set()

    def die(self) -> None:
        self.dead = True
        for link in self.links:
            link.kill()


class _VendorBox(MachineBox):
    async def _run(self, argv: tuple[str, ...]) -> ProgramStream:
        assert isinstance(self.provider, VendorMachines)
        if self.provider.dead:
            raise ProviderUnavailableError("connection refused")
        await self.provider.awake.wait()
        greets = self.provider.greets
        greeting = ("sh", "-c", f'{greets}; exec "$@"', "sh") if greets else ()
        return await super()._run((*greeting, *argv))


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's home, whoever's the tests have."""
    monkeypatch.setenv("HOME", "/root")


@pytest.fixture
async def machines(anyio_backend: str) -> AsyncIterator[VendorMachines]:
    async with VendorMachines() as machines:
        yield machines


@pytest.fixture
async def machine(machines: VendorMachines) -> Machine:
    return await started(machines)


@pytest.mark.parametrize("user", ["nobody", None])
async def test_a_kill_ends_one_command_completely(
    machines: VendorMachines, user: str | None
) -> None:
    machine = await started(machines, user=user)
    as_user = ["setpriv", "--reuid=nobody", "--clear-groups"] if user else []
    neighbour = await machine.program(*as_user, "sleep", "987")
    kills = "" if user else "kill -9 $PPID; "
    script = f"(setsid sh -c 'sleep 985 & exec sleep 986' &) ; setsid sleep 984 & {kills}echo on; sleep 983"
    with anyio.fail_after(60):
        async with machine.running(script):
            await anyio.sleep(0.3)
    living = " ".join(each.args for each in await machine.listed())
    assert "sleep 987" in living
    assert "sleep 98" not in living.replace("sleep 987", "")
    assert (await machine.sh("echo still")).stdout == b"still\n"
    await neighbour.aclose()


async def test_a_restart_is_not_the_commands_fault(machine: Machine) -> None:
    await machine.inner.halt()
    await asyncio.sleep(0.05)  # a start is told from another by the kernel's ticks
    await machine.inner.start()
    with anyio.fail_after(60), pytest.raises(SandboxTerminatedError, match="restarted it") as ended:
        await machine.sh("true")
    assert not ended.value.by_command


async def test_a_process_with_a_dead_agents_name_gets_no_data(machines: VendorMachines) -> None:
    machine = await started(machines, user="nobody")
    await machine.output_of("sh", "-c", f"kill -9 {(await machine.agent()).pid}")
    as_user = ("setpriv", "--reuid=nobody", "--clear-groups", "/usr/bin/python3", "-c")
    name = f"sandboxkit-{machine.id}"
    impostor = await machine.program(*as_user, PROGRAMS["impostor"], name)
    assert (await impostor.receive()).startswith(b"on")
    with anyio.fail_after(60), pytest.raises(SandboxTerminatedError, match="not of this user"):
        await machine.sh("true")
    await impostor.aclose()


async def test_commands_of_another_user_cannot_reach_the_agent(machines: VendorMachines) -> None:
    machine = await started(machines, user="nobody")
    pid = (await machine.agent()).pid
    connect = f"/usr/bin/python3 -c '{PROGRAMS['connects']}' sandboxkit-{machine.id}"
    run = await machine.sh(f"kill -9 {pid}; cat /proc/{pid}/environ /proc/{pid}/mem; {connect}")
    assert b"b''" in run.stdout or run.stdout == b""
    assert (await machine.sh("echo on")).stdout == b"on\n"


async def test_another_process_reuses_the_agent(machine: Machine, machines: VendorMachines) -> None:
    agent = await machine.agent()
    assert agent.parent == 1, "it is not a child of the call that started it"
    other, unknown = Machines(), Machines()
    for each in (other, unknown):
        each.processes, each.programs = machines.processes, machines.programs
    assert (await Machine(other.box(machine.id)).sh("echo other")).stdout == b"other\n"
    assert (await machine.agent()).pid == agent.pid
    await other.box(machine.id).forget()
    await machine.output_of("sh", "-c", f"kill -9 {agent.pid}")
    with anyio.fail_after(60):
        while any("-beside" in each.args for each in await machine.listed()):
            await anyio.sleep(0.01)
    with anyio.fail_after(60), pytest.raises(ProviderUnavailableError, match="has no agent"):
        await Machine(unknown.box(machine.id)).sh("true")


async def sent_with_starts(machines: Machines) -> list[int]:
    """Start two sandboxes, one after the other; the bytes that go to each program first."""
    for _ in range(2):
        await (await machines.create(SandboxSpec(workdir="/tmp"))).delete()
    return [link.sizes[0] for link in machines.links]


async def test_an_existing_copy_is_not_sent_again(anyio_backend: str, tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(binary.path().read_bytes())
    name = f"/usr/local/bin/{install.baked_name()}"
    baked = Machines(f"{OWN_FOLDERS} && cp {tmp_path}/agent {name} && chmod 755 {name}")
    first, second = await sent_with_starts(baked)
    assert first > len(install.data_of(install.LIKELY))
    assert second < 1000


async def test_the_agent_is_sent_at_once_and_fits_the_machine(machines: VendorMachines) -> None:
    first, second = await sent_with_starts(machines)
    assert first == second > len(install.data_of(install.LIKELY))
    ours = install.baked_name() == install.baked_name("amd64")
    machines.assumed_agents[""] = "arm64" if ours else "amd64"
    wrong, again, right = (await sent_with_starts(machines))[2:]
    assert wrong != again == right


@pytest.mark.parametrize(
    ("prepare", "greets"),
    [
        (OWN_FOLDERS + "\n" + PROGRAMS["greedy_head"].rstrip(), ""),
        (OWN_FOLDERS, "printf 'Welcome to \\036 this machine\\n'"),
    ],
    ids=["a head that reads ahead", "output before the agent"],
)
async def test_no_image_loses_bytes(anyio_backend: str, prepare: str, greets: str) -> None:
    async with VendorMachines(prepare) as machines:
        machines.greets = greets
        assert (await (await started(machines)).sh("echo ok")).stdout == b"ok\n"


@pytest.mark.parametrize(("prepare", "user", "why"), PROGRAMS["cannot_run"])
async def test_a_machine_that_cannot_run_the_agent_says_why(
    anyio_backend: str, prepare: str, user: str, why: str
) -> None:
    async with Machines(prepare.replace("OWN_FOLDERS", OWN_FOLDERS)) as machines:
        with anyio.fail_after(60), pytest.raises(SandboxStartError, match=why):
            await started(machines, user=user or None)


async def test_a_stream_that_breaks_before_the_greeting_is_an_infrastructure_error(
    machine: Machine, machines: VendorMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: object) -> bytes:
        raise anyio.BrokenResourceError

    async with Machines(OWN_FOLDERS) as breaking:
        with monkeypatch.context() as patch:
            patch.setattr(Program, "receive", breaks)
            with pytest.raises(ProviderUnavailableError, match="before its agent replied"):
                await started(breaking)
            breaking.processes = dict(machines.processes)
            with pytest.raises(ProviderUnavailableError, match="before its agent replied"):
                await Machine(breaking.box(machine.id)).sh("true")
        breaking.processes.clear()


async def test_root_keeps_the_rights_that_the_vendor_gives(machines: VendorMachines) -> None:
    """Install packages, above all; the agent's own protection is another user for commands."""
    machine = await started(machines, user="nobody")
    script = "f=$(mktemp); chown {who} $f && stat -c %U $f; rm -f $f; grep CapEff /proc/self/status"
    run = await machine.sh(script.format(who="nobody"), user="root")
    owner, capabilities = run.stdout.split(b"\n", 1)
    assert owner == b"nobody"
    assert int(capabilities.split()[1], 16) & 0xFF == 0xFF
    run = await machine.sh(script.format(who="root"))
    assert run.stdout.split() == [b"CapEff:", b"0000000000000000"]


async def test_a_dead_daemon_is_reported_in_time_and_the_command_was_not_sent(
    machine: Machine, machines: VendorMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await machine.sh("echo on")).stdout == b"on\n"
    machines.die()
    client = machine.inner.client
    assert client is not None
    await until(lambda: client._link.is_between)  # it has noticed
    monkeypatch.setattr(box, "_RETURN_PATIENCE", 1.0)
    for _ in range(2):
        not_sent = pytest.raises(ProviderUnavailableError, match="the request was not sent")
        with anyio.fail_after(30), not_sent as raised:  # the grace of its link is a minute
            await machine.sh("echo ran >>/root/ran")
        assert raised.value.retryable
    machines.dead = False
    monkeypatch.setattr(box, "_RETURN_PATIENCE", 60.0)
    with anyio.fail_after(60):
        assert (await machine.sh("cat /root/ran 2>/dev/null; echo on")).stdout == b"on\n"


async def test_a_command_that_ends_while_the_daemon_is_frozen_keeps_its_status(
    machine: Machine, machines: VendorMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENT_AFTER", 1.0)
    monkeypatch.setattr(connection, "_TICK", 0.1)
    monkeypatch.setattr(connection, "_PING_AFTER", 0.2)
    run = Run()

    async def freeze() -> None:
        machines.awake = anyio.Event()
        machines.links[-1].freeze()
        await anyio.sleep(2.2)
        machines.links[-1].freeze(thaw=True)
        machines.awake.set()

    async with at_start(run, freeze):
        await machine.sh("echo on; sleep 1; echo off", run)
    assert (run.status, run.stdout) == (0, b"on\noff\n")


USER = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "--inh-caps=-all")


class OfAUser(MachineBox):
    """The agent is of the same user as the commands, and as the vendor's daemon."""

    async def _run(self, argv: tuple[str, ...]) -> ProgramStream:
        return await super()._run((*USER, "env", "HOME=/srv/home", *argv))


@pytest.fixture
async def of_a_user(anyio_backend: str) -> AsyncIterator[Machines]:
    async with Machines(PROGRAMS["image_of_a_user"], OfAUser) as machines:
        yield machines


async def starts_in(machine: Machine) -> str:
    """Where a command starts, and can make a file; which is what the provider says, too."""
    run = await machine.sh("touch file && pwd")
    assert run.status == 0, run.stderr
    where = run.stdout.decode().strip()
    assert await machine.inner.workdir() == where
    return where


async def test_a_requested_folder_is_made_or_raises(of_a_user: Machines) -> None:
    assert await starts_in(await started(of_a_user, "/srv/home/a/b")) == "/srv/home/a/b"
    with pytest.raises(SandboxStartError, match=r"/mnt/work.*user 1234.*permission denied"):
        await started(of_a_user, "/mnt/work")
    with pytest.raises(SandboxStartError, match=r"/etc/passwd.*not a directory"):
        await started(of_a_user, "/etc/passwd")


async def test_roots_agent_makes_the_folder_in_a_private_home(anyio_backend: str) -> None:
    async with Machines(PROGRAMS["image_of_a_user"]) as machines:
        machine = await started(machines, "/srv/home/work", user="1234")
        assert await starts_in(machine) == "/srv/home/work"


async def test_a_command_attaches_to_nothing_and_traces_what_it_starts(of_a_user: Machines) -> None:
    """The vendor's daemon is of the commands' user here."""
    machine = await started(of_a_user, "/srv/home/work")
    await machine.program(*USER, "sleep", "1000")
    run = await machine.exec("/usr/bin/python3", "-c", PROGRAMS["attach"])
    assert run.stdout == b"-1 1\n-1 1\nTrue\n", run.stderr
