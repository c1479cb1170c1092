"""Sandboxes without namespaces: attacks, what ends with them, and what is refused."""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session, errors
from sandboxkit.integrations.rewards import HostCompare, Outcome
from sandboxkit.kernel import Kernel
from sandboxkit.providers.local import LocalProvider, _cgroup, _landlock, _start_errors
from sandboxkit.providers.local._namespaces import namespace_of
from sandboxkit.providers.local._start_errors import landlock_lacks
from sandboxkit.types import Command
from tests.components import needs_root, reason
from tests.data_here import beside
from tests.docker_here import require_docker, require_gvisor
from tests.local.conftest import PROGRAMS, Box, Run, client, ended, make, said
from tests.local.test_host_uid import as_ordinary_user

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# At most 2,048 processes: a container's root has no other limit than its container, in which other tests run as well.
BOMB = "import os, time\nfor _ in range(11):\n try: os.fork()\n except OSError: os._exit(7)\ntime.sleep(3)"
ATTACKS = beside(__file__, "landlock_attacks.toml")
needs_landlock = pytest.mark.skipif(
    bool(landlock_lacks()),
    reason=reason("Landlock of version 6", "use Linux 6.12 or newer", landlock_lacks()),
)
pytestmark = [pytest.mark.anyio, needs_landlock]


@pytest.fixture(params=["own_uid", "owners_uid"])
async def box(
    request: pytest.FixtureRequest, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> Box:
    """A sandbox without control groups, with a uid of its own, which root can give it, or with that of its owner."""
    own = request.param == "own_uid"
    if own and os.geteuid() != 0:
        pytest.skip(reason("root", "run the tests as root", "only root gives uids"))
    monkeypatch.setattr(_landlock, "_python_is_readable", lambda: own)
    monkeypatch.setattr(_cgroup, "available", frozenset)
    return await make(provider, isolation="landlock")


async def python(box: Box, code: str) -> Run:
    """Run code in the Python of the system, which every uid can read."""
    return await box.run("/usr/bin/python3", "-c", code)


def running(mark: str) -> list[str]:
    """Return the pids of this machine's processes with these words in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


async def until(mark: str, *, runs: bool) -> None:
    """Wait until a process has these words in its command line, or none has."""
    with anyio.fail_after(30):
        while bool(running(mark)) != runs:  # other processes' doing
            await anyio.sleep(0.01)


def outcome(text: str, owners_uid: bool) -> None:
    """Check what the program that attacks wrote: no attack succeeded, and the sandbox's uid."""
    lines = text.splitlines()
    assert (json.loads(lines[0]), lines[-1]) == ({}, str(owners_uid))


async def test_no_attack_succeeds(state: Path) -> None:
    own = _landlock.lend()
    if own is not None:
        own.give_back()
    process = client(PROGRAMS["landlock_is_attacked"], str(HERE))
    outcome(await ended(process), own is None)


@needs_root("root starts programs as other users")
async def test_no_attack_on_an_ordinary_user_succeeds(state: Path) -> None:
    code = PROGRAMS["landlock_is_attacked"]
    outcome(await as_ordinary_user(code, state, None, str(HERE)), True)


@pytest.mark.parametrize("where", ["local", "docker"])
@pytest.mark.parametrize("isolation", ["", "gvisor"])
async def test_the_same_attacks_reach_only_what_is_the_sandboxs_own_elsewhere(
    where: str, isolation: str, state: Path
) -> None:
    (require_gvisor if isolation else require_docker)()
    process = client(PROGRAMS["landlock_is_attacked"], str(HERE), where, isolation)
    reached = {*json.loads((await ended(process)).splitlines()[0])}
    assert reached <= {*ATTACKS["own"]["everywhere"], *ATTACKS["own"].get(isolation or where, ())}


def test_the_table_of_security_counts_the_attacks() -> None:
    counts = [len(group) for name, group in ATTACKS.items() if name not in ("numbers", "own")]
    _, _, section = (ROOT / "docs" / "security.md").read_text().partition("## What Landlock holds")
    section, _, _ = section.partition("\n## ")
    assert [int(each) for each in re.findall(r"\((\d+)\) \|", section)] == counts
    assert f"has {sum(counts)} attacks" in section


async def test_commands_run_and_files_are_found_by_the_usual_paths(box: Box) -> None:
    program = b"print(open('/proc/self/comm').read())"
    await box.inner.write_file("/workspace/a/program.py", program, mode=None)
    await box.inner.write_file("/tmp/data", b"x", mode=0o640)
    done = await box.run("/usr/bin/python3", "/workspace/a/program.py")
    assert (done.status, done.stdout) == (0, "python3\n\n")
    done = await box.sh('stat -c %a "$TMPDIR/data"; pwd; echo "$HOME"; ls')
    workdir = await box.inner.workdir()
    assert done.stdout.split() == ["640", workdir, workdir, "a"]
    found = [each.path for each in await box.inner.list_dir("/workspace")]
    assert found == ["/workspace/a"]


async def test_the_owner_reads_no_file_through_a_link_of_the_sandbox(
    box: Box, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    await box.sh(f"ln -s {secret} link")
    for path in ("/workspace/link", str(secret)):
        with pytest.raises(errors.SandboxFileError):
            await box.inner.read_file(path, max_bytes=100)
        with pytest.raises(errors.SandboxFileError):
            await box.inner.write_file(f"{path}/../y", b"", mode=None)


async def test_a_timeout_ends_every_process_of_the_command(box: Box) -> None:
    script = "(setsid sleep 86401 &); setsid sh -c 'sleep 86401 & echo on; sleep 86401'"
    run = Run()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.inner.exec, Command(("sh", "-c", script)), run.output)
        await run.heard.wait()
        tasks.cancel_scope.cancel()
    assert running("sleep\x0086401") == []
    assert (await box.sh("echo lives")).stdout == "lives\n"


async def test_a_kill_of_everything_reaches_the_command_alone(box: Box) -> None:
    other = await make(box.provider, isolation="landlock")
    await other.sh("sleep 86402 > /dev/null 2>&1 &")
    await until("sleep\x0086402", runs=True)
    killed = await python(box, "import os; os.kill(-1, 9); print('alone')")
    assert killed.stdout == "alone\n"
    assert len(running("sleep\x0086402")) == 1
    await other.inner.delete()
    assert running("sleep\x0086402") == []


@pytest.mark.parametrize("victim", ["agent", "supervisor", "owner"])
async def test_nothing_outlives_a_killed(victim: str, provider: LocalProvider, state: Path) -> None:
    mark = f"sleep\x0086{len(victim)}03"
    create = (
        "box = await provider.create(SandboxSpec(isolation='landlock'))\n"
        f"await box.exec(Command(('sh', '-c', '(setsid {mark.replace(chr(0), ' ')} &) "
        "> /dev/null 2>&1')), output)\n"
        "print(*box.launched.processes(), os.getpid(), flush=True)\nawait anyio.sleep(600)"
    )
    process = client(create)
    pids = dict[str, str](
        zip(("supervisor", "agent", "owner"), (await said(process)).split(), strict=True)
    )
    folder = next(path for path in state.iterdir() if path.name.startswith("local-"))
    work = Path((folder / "work").read_text())
    await until(mark, runs=True)
    assert work.is_dir()
    os.kill(int(pids[victim]), signal.SIGKILL)
    await until(mark, runs=False)
    await ended(process, signal.SIGKILL)
    assert [info async for info in provider.list({})] == []
    assert not work.exists()


async def test_a_fork_bomb_ends_the_command_or_the_sandbox(provider: LocalProvider) -> None:
    box = await make(provider, isolation="landlock")
    with suppress(errors.CommandStartError, errors.SandboxTerminatedError):
        await python(box, BOMB)
        assert (await box.sh("echo lives")).stdout == "lives\n"
    await box.inner.delete()
    assert running(BOMB[:40]) == []


@needs_root("root starts programs as other users")
async def test_the_owners_uid_has_a_limit_that_other_sandboxes_do_not_reach(state: Path) -> None:
    seen = json.loads(await as_ordinary_user(PROGRAMS["landlock_limit"], state))
    assert seen["before"] + 16_000 < seen["limit"] < seen["before"] + 20_000


async def test_memory_that_processes_have_together_is_bounded(box: Box) -> None:
    hog = "import mmap, os, time\nfor _ in range(4):\n if os.fork() == 0: break\n"
    hog += "m = mmap.mmap(-1, 400 << 20)\nfor at in range(0, 400 << 20, 4096): m[at] = 1\ntime.sleep(30)"
    with pytest.raises(errors.SandboxTerminatedError) as caught:
        await python(box, hog)
    assert caught.value.out_of_memory
    await until("400 << 20", runs=False)


async def test_memory_that_forks_share_counts_once(box: Box) -> None:
    code = "import os, time\ndata = bytearray(300 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1\n"
    code += (
        "pids = [pid for _ in range(6) if (pid := os.fork()) or time.sleep(0.3) or os._exit(0)]\n"
    )
    code += "print([os.waitpid(each, 0)[1] for each in pids])"
    assert (await python(box, code)).stdout == "[0, 0, 0, 0, 0, 0]\n"


async def test_an_interpreters_jobs_are_confined(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    async with Session("local", isolation="landlock", profile="strict") as session:
        done = await session.run_python(
            f"import socket\nfor attack in (lambda: open({str(secret)!r}), socket.socket):\n"
            " try: attack()\n except OSError as error: print(error.errno)"
        )
    assert done.stdout.split() == ["13", "97"]


async def test_a_kernel_has_forks_and_ipykernel_is_refused_by_name() -> None:
    async with Session("local", isolation="landlock") as session:
        sandbox = session.sandbox(files={"/workspace/ipykernel.py": ""})
        env = {"PYTHONPATH": await sandbox.workdir()}
        with pytest.raises(errors.CommandStartError, match=r"no sockets, .*ipykernel=False"):
            await sandbox.python(ipykernel=True, env=env).run("")
        async with sandbox.python(env=env) as kernel:
            await kernel.run("x = 1")
            (fork,) = await kernel.fork(1)
            assert isinstance(fork, Kernel), fork
            assert ((await fork.run("x + 1")).text, fork.backend) == ("2", "own")


async def test_a_right_submission_passes() -> None:
    task = {"test_list": ["assert f(1) > 0", "assert f(2) == 2"]}
    async with Session("local", isolation="landlock") as session:
        verdict = await HostCompare().grade(session, "def f(x): print(x); return x", task)
    assert verdict.outcome is Outcome.PASSED, verdict


async def test_what_landlock_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    refused: dict[str, object] = {"image": "/", "network": "internet", "disk_mb": 10}
    refused |= {"mounts": {"/data": "volume:v"}, "user": "root", "workdir": "/workspace"}
    refused |= {"reuse": "reset"}
    session = Session("local", isolation="landlock", profile="strict")
    for option, value in refused.items():
        with pytest.raises(errors.ConfigurationError, match=f"cannot honour {option}="):
            session.sandbox(**{option: value})  # type: ignore[arg-type]  # one option at a time
    with pytest.raises(errors.ConfigurationError, match=r"cannot honour network=.*pypi"):
        session.sandbox(network=["pypi.org"])
    with pytest.raises(errors.ConfigurationError, match=r"isolation='landlock'.*download"):
        session.sandbox().snapshot()
    with pytest.raises(errors.ConfigurationError, match="has no ports"):
        await session.sandbox().connect(80)
    monkeypatch.setattr(_start_errors, "landlock_lacks", lambda: "this kernel has no Landlock")
    with pytest.raises(errors.ConfigurationError, match="isolation='landlock': this kernel has no"):
        session.sandbox()
    await session.close()


async def test_the_environment_names_the_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_start_errors.VARIABLE, "landlock")
    async with Session("local") as session:
        assert "TMPDIR=/" in (await session.run(["env"])).stdout
        assert (await session.run(["env"], isolation="namespaces")).stdout.count("TMPDIR") == 0
    monkeypatch.setenv(_start_errors.VARIABLE, "container")
    with pytest.raises(errors.ConfigurationError, match="namespaces, landlock, gvisor"):
        Session("local").sandbox()


def test_an_error_about_a_namespace_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["sh", "-c", "echo unshare: Operation not permitted >&2"]
    full = ["sh", "-c", "echo unshare: No space left on device >&2"]
    with pytest.raises(errors.SandboxStartError) as caught:
        namespace_of(refused, "user")
    named = "unconfined.*isolation='landlock'.*SANDBOXKIT_LOCAL_ISOLATION=landlock"
    assert re.search(named, str(caught.value))
    with pytest.raises(errors.CapacityError):
        namespace_of(full, "user")
    monkeypatch.setattr(_start_errors, "landlock_lacks", lambda: "this kernel has no Landlock")
    with pytest.raises(errors.SandboxStartError, match=r"unconfined.*\(this kernel has no Land"):
        namespace_of(refused, "user")
    monkeypatch.setattr(_start_errors, "_setting", lambda: "sysctl -w user.max_user_namespaces=1")
    with pytest.raises(errors.SandboxStartError, match="sysctl") as caught:
        namespace_of(full, "user")
    assert not caught.value.retryable
