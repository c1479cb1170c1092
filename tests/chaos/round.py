"""One round: a client, what happens to it at a random moment, and a look at what it left.

A process of its own, which every orphan of the client's comes to: none can be overlooked. It
prints its outcome as one line of JSON, and takes all it started along when it ends.
"""

import ctypes
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from sandboxkit.errors import ConfigurationError
from tests.chaos._work import FORK_NAME, HEALED, PATIENCE
from tests.faults import Drop, FaultProxy, Half, Late, Reset, SeededPlan, Stall

__all__ = ["KINDS", "Outcome", "Places", "Setting", "kind_of"]

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


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rounds of one run have in common."""

    provider: str
    """A name, as `Session` takes it."""
    places: str | None = None
    """A class, "module:Class", that looks for what is left, see `Places`. None: the provider's
    own list."""
    through: str | None = None
    """Such as "DOCKER_HOST=unix:///var/run/docker.sock": the variable that leads the provider to
    its server, and the server's address. Some rounds then break that connection."""
    client: str | None = None
    """The module that is the client of those rounds, where it must first be kept from ways to a
    sandbox that do not lead through the proxy."""
    alone: float = 20.0
    """Seconds in which what a client leaves has ended by itself: a lease, where one holds it."""
    swept: float = 60.0
    """Seconds in which the last of it is gone once `sandboxkit cleanup` has said that it is."""


class Places(Protocol):
    """Looks where a provider could leave something, without the provider's help."""

    def watch(self) -> None:
        """Called again and again while the client runs."""

    def left(self) -> set[str]:
        """Describe what is there now of this round's sandboxes.

        What still runs begins with "live": it has to end by itself after a client's death. The
        remains of what has ended may wait for `sandboxkit cleanup`, or for the next client.
        """
        ...


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
    """What happens in the round of this seed."""
    kinds = KINDS if setting.through is not None else ("close", *SIGNALS)
    return kinds[seed % len(kinds)]


class Round:
    """One round's parts; used once."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._random = random.Random(f"round {seed}")
        self._tag = uuid.uuid4().hex[:12]
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._folder.chmod(0o777)
        self._places = _places(setting.places, self._tag, self._folder)
        self._signalled = False
        self._detach = self._random.random() < 0.3
        self.outcome = Outcome(seed, kind_of(seed, setting))

    def run(self) -> Outcome:
        """Do it, and look."""
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        os.environ["SANDBOXKIT_STATE_DIR"] = str(self._folder / "state")
        try:
            with ExitStack() as stack:
                proxy = self._proxy(stack)
                client = self._start(proxy)
                self._happen(client, proxy)
                if proxy is not None:
                    proxy.heal()
                self._read(client)
            self._look()
        finally:
            _end_descendants()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.outcome

    def _proxy(self, stack: ExitStack) -> FaultProxy | None:
        if self._setting.through is None or self.outcome.kind not in FAULTS:
            return None
        upstream = self._setting.through.partition("=")[2]
        return stack.enter_context(FaultProxy(upstream, listen="tcp"))

    def _start(self, proxy: FaultProxy | None) -> "subprocess.Popen[str]":
        environment = {**os.environ, "TMPDIR": str(self._folder)}
        program = "tests.chaos.client"
        if proxy is not None and self._setting.through is not None:
            environment[self._setting.through.partition("=")[0]] = proxy.url
            program = self._setting.client or program
        command = [sys.executable, "-m", program, self._setting.provider]
        command += [self._tag, str(self.outcome.seed), str(_WORK_SECONDS), str(self._folder)]
        with (
            open(self._folder / "stderr", "w") as errors,
            open(self._folder / "stdout", "w") as out,
        ):
            return subprocess.Popen(
                [*command, *(["detach"] if self._detach else [])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )

    def _happen(self, client: "subprocess.Popen[str]", proxy: FaultProxy | None) -> None:
        """Wait for the moment, let it happen, and wait for the client's end."""
        kind = self.outcome.kind
        if kind in SIGNALS and self._random.random() < 0.2:
            self._wait(client, self._random.uniform(0, 1.0))  # while it starts, or even imports
        else:
            self._wait_for(client, lambda: "ready" in self._printed())
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
            with suppress(ProcessLookupError):
                client.send_signal(signal.SIGUSR1)  # its threads' stacks, to its stderr
            self._wait(client, 0.5)
            client.kill()
            client.wait()
            self.outcome.hang = f"the client did not end in {_END_SECONDS:g} s:\n{self._errors()}"

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
                faults = (
                    Drop(),
                    Drop("reset"),
                    Half(20),
                    Half(3000),
                    Late(0.3),
                    Reset(),
                    Stall("both", 1),
                )
                proxy.plan = SeededPlan(self.outcome.seed, faults, share=0.2)
                self._wait(client, _WORK_SECONDS)
        proxy.heal()

    def _wait(self, client: "subprocess.Popen[str]", seconds: float) -> bool:
        return self._wait_for(client, lambda: False, seconds)

    def _wait_for(
        self,
        client: "subprocess.Popen[str]",
        found: Callable[[], bool],
        seconds: float = _READY_SECONDS,
    ) -> bool:
        """Whether the client ended meanwhile."""
        deadline = time.monotonic() + seconds
        while client.poll() is None:
            if time.monotonic() > deadline or found():
                return False
            self._places.watch()
            time.sleep(0.01)
        return True

    def _printed(self) -> str:
        return (self._folder / "stdout").read_text(errors="replace")

    def _errors(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")[-6000:]

    def _read(self, client: "subprocess.Popen[str]") -> None:
        """What the client says, if it came so far, and what its end says."""
        report = self._printed().partition("ready\n")[2]
        if report.startswith("{"):
            reply = json.loads(report)
            self.outcome.outcomes = reply["outcomes"]
            self.outcome.wrong += reply["wrong"]
        elif not self._signalled and not self.outcome.hang:
            self.outcome.wrong.append(f"status {client.returncode}: {self._errors()}")
        elif client.returncode == 3:
            self.outcome.wrong.append(self._errors())

    def _look(self) -> None:
        ended = time.monotonic()
        if not self._detach:
            if self._gone(self._setting.alone):
                self.outcome.seconds = time.monotonic() - ended
                return
            self.outcome.swept = sorted(self._left())
            living = [what for what in self.outcome.swept if what.startswith("live ")]
            self.outcome.wrong += [
                f"still there after {self._setting.alone:g} s: {w}" for w in living
            ]
        command = [sys.executable, "-m", "sandboxkit", "cleanup"]
        done = subprocess.run(
            [*command, "-p", self._setting.provider, "--tag", f"chaos:{self._tag}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
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


class _Listed:
    """Where nobody says where to look: what the provider itself lists."""

    def __init__(self, tag: str, folder: Path) -> None:
        self._tag = tag

    def watch(self) -> None:
        pass

    def left(self) -> set[str]:
        from sandboxkit import Session

        with Session() as session:
            return {info.id for info in session.list(f"chaos:{self._tag}").result(60)}


def _places(name: str | None, tag: str, folder: Path) -> Places:
    if name is None:
        return _Listed(tag, folder)
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ConfigurationError(f"places {name!r} is not of the form module:Class")
    made: Places = getattr(importlib.import_module(module), attribute)(tag, folder)
    return made


def _signal(client: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        client.send_signal(number)


def _children() -> dict[int, list[int]]:
    """Every process's children; zombies are left out, and reaped where they are ours."""
    found: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            fields = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
        except OSError:
            continue
        if fields[0] == "Z":
            if int(fields[1]) == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            continue
        found.setdefault(int(fields[1]), []).append(pid)
    return found


def _descendants(forks: bool = False) -> Iterator[tuple[int, str]]:
    """Our processes below this one, and their command lines."""
    children = _children()
    below = list(children.get(os.getpid(), ()))
    for pid in below:
        below += children.get(pid, ())
    for pid in below:
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if forks or name != FORK_NAME:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                yield pid, line.decode(errors="replace")[:100] or name


def _end_descendants() -> None:
    deadline = time.monotonic() + 5
    while found := list(_descendants(forks=True)):
        for pid, _ in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def main() -> None:
    """`python -m tests.chaos.round SETTING SEED`, the setting as JSON."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    setting = Setting(**json.loads(sys.argv[1]))
    os.environ["SANDBOXKIT_PROVIDER"] = setting.provider
    outcome = Round(setting, int(sys.argv[2])).run()
    json.dump(asdict(outcome), sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
