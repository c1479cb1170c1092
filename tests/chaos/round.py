"""One round: a client, what happens to it at a random moment, and a look at what it left.

A process of its own, which every orphan of the client's comes to: none can be overlooked. It
prints its outcome as one line of JSON, and takes all it started along when it ends.
"""

import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sandboxkit import Session
from tests.chaos.calls import weather
from tests.chaos.client import FORK_NAME, HEALED, PATIENCE
from tests.faults import FaultProxy
from tests.process_list import Listed, processes

SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
    "interrupt twice": signal.SIGINT,
    "hang up": signal.SIGHUP,
    "abort": signal.SIGABRT,
}
FAULTS = ("stall", "reset", "planned")
KINDS = ("close", *SIGNALS, *FAULTS)

_WORK_SECONDS = 2.5
_READY_SECONDS = 120.0
"""For a client to have warmed up: what happens to it happens afterwards."""
_END_SECONDS = PATIENCE + 45
"""For a client to end, whatever happened to it."""
_SUBREAPER = 36
_CGROUPS = Path("/sys/fs/cgroup")
_ID = re.compile(r"local-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rounds of one run have in common."""

    provider: str
    """A name, as `Session` takes it."""
    through: str | None = None
    """The variable that leads the provider to its server, "=", and the address: some rounds break that way."""
    alone: float = 20.0
    """Seconds in which what a client leaves has ended by itself: a lease, where one holds it."""
    swept: float = 60.0
    """Seconds in which the last of it is gone once `sandboxkit cleanup` has said that it is."""
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What a round found."""

    seed: int
    kind: str
    hang: str = ""
    wrong: list[str] = field(default_factory=list)
    """Errors that are none of sandboxkit's, and what the client left open in itself."""
    swept: list[str] = field(default_factory=list)
    """What was not gone by itself in time, but went with `sandboxkit cleanup`."""
    left: list[str] = field(default_factory=list)
    """What even that did not remove."""
    seconds: float = 0.0
    """From the client's end until nothing was left."""
    outcomes: dict[str, int] = field(default_factory=dict)


def kind_of(seed: int, setting: Setting) -> str:
    kinds = KINDS if setting.through is not None else ("close", *SIGNALS)
    return kinds[seed % len(kinds)]


# Where a provider could leave something of a round, looked at without the provider's help. What still runs
# begins with "live": it has to end by itself after a client's death. The remains of what has ended may wait for
# `sandboxkit cleanup`, or for the next client.


class Places:
    """Where nobody says where to look: what the provider itself lists."""

    def __init__(self, tag: str, folder: Path) -> None:
        self.tag, self.folder = tag, folder

    def watch(self) -> None:  # again and again while the client runs
        pass

    def left(self) -> set[str]:
        """Describe what is there now of this round's sandboxes."""
        with Session() as session:
            return {info.id for info in session.list(f"chaos:{self.tag}").result(60)}


class Local(Places):
    """Folders of state, control groups and mounts. A round has a folder for state of its own."""

    seen: frozenset[str] = frozenset()

    def watch(self) -> None:
        """Learn the sandboxes' ids: the folder of one is there before anything else of it."""
        self.seen |= {found[0] for path in self._folders() if (found := _ID.search(path.name))}

    def left(self) -> set[str]:
        self.watch()
        found = {f"state {path.name}" for path in self._folders()}
        for pattern in ("sandboxkit/*", "*/sandboxkit/*"):
            for path in _CGROUPS.glob(pattern):
                known = _ID.search(path.name)
                if known is not None and known[0] in self.seen:
                    found.add(f"cgroup {path}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return found | {f"mount {line}" for line in mounts if str(self.folder) in line}

    def _folders(self) -> list[Path]:
        return [path for path in (self.folder / "state").glob("*") if path.is_dir()]


class Docker(Places):
    """Containers, in whatever state."""

    def left(self) -> set[str]:
        command = ["docker", "ps", "--all", "--filter", f"label=chaos={self.tag}", "--format"]
        command += ["{{.Names}} {{.Status}}"]
        lines = subprocess.check_output(command, text=True, timeout=60).splitlines()
        return {f"{'live ' if ' Up' in line else ''}container {line}" for line in lines}


class Haunted(Places):
    """A place where there is always something."""

    def left(self) -> set[str]:
        return {"a ghost"}


PLACES: dict[str, type[Places]] = {"local": Local, "docker": Docker}


class Round:
    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._random = random.Random(f"round {seed}")
        self._tag = uuid.uuid4().hex[:12]
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._folder.chmod(0o777)
        kind = Haunted if "leaky" in setting.options else PLACES.get(setting.provider, Places)
        self._places = kind(self._tag, self._folder)
        self._signalled = False
        self._detach = self._random.random() < 0.3
        self.outcome = Outcome(seed, kind_of(seed, setting))

    def run(self) -> Outcome:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        os.environ["SANDBOXKIT_STATE_DIR"] = str(self._folder / "state")
        try:
            with ExitStack() as stack:
                proxy, variable, upstream = None, "", ""
                if self._setting.through is not None and self.outcome.kind in FAULTS:
                    variable, _, upstream = self._setting.through.partition("=")
                    proxy = stack.enter_context(FaultProxy(upstream, listen="tcp"))
                client = self._start({variable: proxy.url} if proxy is not None else {})
                self._happen(client, proxy)
                if proxy is not None:
                    proxy.heal()
                self._read(client)
            self._look()
        finally:
            _end_descendants()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.outcome

    def _start(self, through: dict[str, str]) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.chaos.client", self._setting.provider]
        command += [self._tag, str(self.outcome.seed), str(_WORK_SECONDS), str(self._folder)]
        command += [*self._setting.options, *(["detach"] if self._detach else [])]
        with open(self._folder / "stderr", "w") as err, open(self._folder / "stdout", "w") as out:
            return subprocess.Popen(
                [*command, *(["distant"] if through else [])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                env={**os.environ, "TMPDIR": str(self._folder), **through},
                start_new_session=True,
            )

    def _happen(self, client: "subprocess.Popen[str]", proxy: FaultProxy | None) -> None:
        """Wait for the moment, let it happen, and wait for the client's end."""
        kind = self.outcome.kind
        if kind in SIGNALS and self._random.random() < 0.2:
            self._wait(client, self._random.uniform(0, 1.0))  # while it starts, or even imports
        else:
            self._wait(client, _READY_SECONDS, "ready")
            self._wait(client, self._random.uniform(0, _WORK_SECONDS))
        if kind in SIGNALS and client.poll() is None:
            self._signalled = True
            _signal(client, SIGNALS[kind])
            if kind == "interrupt twice":
                self._wait(client, self._random.uniform(0, 0.5))
                _signal(client, SIGNALS[kind])
        elif proxy is not None:
            self._break(client, proxy)
        (self._folder / HEALED).touch()
        if not self._wait(client, _END_SECONDS):
            _signal(client, signal.SIGUSR1)  # its threads' stacks, to its stderr
            self._wait(client, 0.5)
            client.kill()
            client.wait()
            said = self._said("stderr")
            self.outcome.hang = f"the client did not end in {_END_SECONDS:g} s:\n{said}"

    def _break(self, client: "subprocess.Popen[str]", proxy: FaultProxy) -> None:
        match self.outcome.kind:
            case "stall":
                proxy.stall(self._random.choice(["both", "request", "answer"]))
                self._wait(client, self._random.uniform(0.1, 6))
            case "reset":
                for _ in range(self._random.randint(1, 4)):
                    proxy.reset()
                    self._wait(client, self._random.uniform(0, 0.5))
            case _:
                proxy.plan = weather(self.outcome.seed, 0.2)
                self._wait(client, _WORK_SECONDS)
        proxy.heal()

    def _wait(self, client: "subprocess.Popen[str]", seconds: float, said: str = "") -> bool:
        """Whether the client ended meanwhile, and before it has said that."""
        deadline = time.monotonic() + seconds
        while client.poll() is None:
            if time.monotonic() > deadline or (said and said in self._said("stdout")):
                return False
            self._places.watch()
            time.sleep(0.01)
        return True

    def _said(self, stream: str) -> str:
        return (self._folder / stream).read_text(errors="replace")[-6000:]

    def _read(self, client: "subprocess.Popen[str]") -> None:
        """What the client says, if it came so far, and what its end says."""
        report = (self._folder / "stdout").read_text(errors="replace").partition("ready\n")[2]
        if report.startswith("{"):
            reply = json.loads(report)
            self.outcome.outcomes = reply["outcomes"]
            self.outcome.wrong += reply["wrong"]
        elif not self._signalled and not self.outcome.hang:
            self.outcome.wrong.append(f"status {client.returncode}: {self._said('stderr')}")
        elif client.returncode == 3:
            self.outcome.wrong.append(self._said("stderr"))

    def _look(self) -> None:
        ended, alone = time.monotonic(), self._setting.alone
        if not self._detach:
            if self._gone(alone):
                self.outcome.seconds = time.monotonic() - ended
                return
            self.outcome.swept = sorted(self._left())
            living = [what for what in self.outcome.swept if what.startswith("live ")]
            self.outcome.wrong += [f"still there after {alone:g} s: {what}" for what in living]
        command = [sys.executable, "-m", "sandboxkit", "cleanup", "-p", self._setting.provider]
        done = subprocess.run(
            [*command, "--tag", f"chaos:{self._tag}"], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            self.outcome.wrong.append(f"cleanup: {done.stderr}")
        self._gone(self._setting.swept)
        self.outcome.left = sorted(self._left())
        self.outcome.seconds = time.monotonic() - ended

    def _gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._left():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _left(self) -> set[str]:
        running = {f"live process {pid} {what}" for pid, what in _descendants()}
        return running | self._places.left()


def _signal(client: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        client.send_signal(number)


def _descendants(forks: bool = False) -> list[tuple[int, str]]:
    """The processes below this one, and their command lines; what has ended is reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    listed, found, pids = processes(), list[Listed](), {os.getpid()}
    while new := [each for each in listed if each.parent in pids and each.pid not in pids]:
        found += new
        pids |= {each.pid for each in new}
    living = [each for each in found if each.state != "Z" and (forks or each.name != FORK_NAME)]
    return [(each.pid, each.args[:100] or each.name) for each in living]


def _end_descendants() -> None:
    deadline = time.monotonic() + 5
    while found := _descendants(forks=True):
        for pid, _ in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


if __name__ == "__main__":  # SETTING SEED, the setting as JSON
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    setting = Setting(**json.loads(sys.argv[1]))
    os.environ["SANDBOXKIT_PROVIDER"] = setting.provider
    json.dump(asdict(Round(setting, int(sys.argv[2])).run()), sys.stdout)
    sys.stdout.write("\n")
