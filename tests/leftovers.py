"""What sandboxes can leave on this machine: found by looking, without sandboxkit's own help."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

MARKER = "SANDBOXKIT_TEST_RUN"
"""An environment variable that every process of a test run inherits."""

LEFT = "the tests left behind:\n"
"""How a failure begins that running its test again does not excuse."""
_CGROUPS = Path("/sys/fs/cgroup")
_OWNER = "sandboxkit.owner"
_STORES = ("datasets", "snapshots", "snapshot-records", "kubernetes-snapshots")
"""Folders that stay when they are empty."""

_AGENT = re.compile(rb"\.sandboxkit(-[0-9a-f]{16})?/agent")


def survey(run: str, temporary: Path) -> set[str]:
    """Describe everything of ours that is there now.

    `run` is the marker's value and `temporary` the folder for temporary files of this test
    run. What belongs to another test run on the same machine is left out where we can tell.
    """
    foreign: set[str] = set()
    found = {*_states(foreign), *_containers(foreign), *_cgroups(foreign), *_mounts()}
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    found |= {line for pid in pids if (line := _describe(pid, run, temporary))}
    files = [path for path in temporary.iterdir() if not _stays(path.name)]
    return found | {f"temporary file {path}" for path in files}


def _stays(name: str) -> bool:
    """Whether a temporary file is pytest's, or of a client that was killed, which the next FakeProvider removes."""
    maker = re.match(r"sandboxkit-fake-(\d+)-", name)
    return name.startswith("pytest-of-") or (
        maker is not None and not os.path.exists(f"/proc/{maker[1]}")
    )


def _containers(foreign: set[str]) -> Iterator[str]:
    form = '{{.Names}}\t{{.Status}}\t{{.Label "' + _OWNER + '"}}'
    command = ["docker", "ps", "--all", "--filter", "label=sandboxkit=1", "--format", form]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        name, status, owner = line.split("\t")
        if not _is_foreign(owner):
            yield f"container {name} ({status.split()[0]})"


def _states(foreign: set[str]) -> Iterator[str]:
    folders = [Path("/run/sandboxkit"), *Path("/tmp").glob("sandboxkit-[0-9]*")]
    for variable, below in (("SANDBOXKIT_STATE_DIR", ""), ("XDG_RUNTIME_DIR", "sandboxkit")):
        if value := os.environ.get(variable):
            folders.append(Path(value, below))
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            continue  # it is not there, or another user's
        for path in folder.iterdir():
            try:
                owner = json.loads((path / "meta.json").read_text())["tags"].get(_OWNER, "")
            except (OSError, ValueError):
                owner = ""
            if path.name.startswith("ledger.sqlite3"):
                continue  # kept on purpose, by day; SQLite's journal is beside it
            if path.name in _STORES:  # by entry: another run's snapshots come and go all the time
                yield from (f"state {path / name}" for name in os.listdir(path))
                continue
            if _is_foreign(owner):
                foreign.add(path.name)
            else:
                yield f"state {path}"


def _cgroups(foreign: set[str]) -> Iterator[str]:
    for parent in [_CGROUPS / "sandboxkit", *_CGROUPS.glob("*/sandboxkit")]:
        for path in parent.iterdir() if parent.is_dir() else ():
            maker = re.match(r"(?:detached-)?(\d+)-(\d+)-", path.name)
            theirs = path.name[-len("local-0123456789abcdef") :] in foreign or (
                maker is not None and _is_foreign(f"..{maker[1]}.{maker[2]}")
            )
            if path.is_dir() and not theirs:
                yield f"cgroup {path}"


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if "sandboxkit" in line:
            yield f"mount {line.split()[4]}"


def _describe(pid: int, run: str, temporary: Path) -> str | None:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        chain = list(_ancestors(pid))
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # it ended, or is another user's
        return None
    if pid == os.getpid() or b"multiprocessing.resource_tracker" in b" ".join(argv):
        return None
    names = [_name(each) for each in chain]
    sandboxed = any(_AGENT.search(part) or b"/bwrap" in part for part in argv)
    # A process with an environment of its own still stands in a folder of this run.
    if f"{MARKER}={run}".encode() in environment or folder.startswith(str(temporary)):
        ours = True
    elif sandboxed and not any(name.startswith("containerd-shim") for name in names):
        # An orphan, or ours; not one whose owner is another living Python program.
        ours = os.getpid() in chain or not any(name.startswith("py") for name in names)
    else:
        ours = False
    if not ours:
        return None
    shown = b" ".join(argv).decode(errors="replace")[:120]
    return f"process {pid} {shown or _name(pid)} (children of {names})"


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def _is_foreign(owner: str) -> bool:
    """Whether an owner tag, BOOT.NAMESPACE.PID.START, names a living process not of this run."""
    pid = owner.rpartition(".")[0].rpartition(".")[2]
    if not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        return os.getpid() not in _ancestors(int(pid))
    except OSError:
        return False
