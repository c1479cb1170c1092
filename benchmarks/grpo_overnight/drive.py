"""One leg, from where it is to its end or to a signal: the trainer's program, and what happens to it."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.grpo_overnight import faults, measures
from benchmarks.grpo_overnight.plan import Leg, Plan, Progress
from benchmarks.grpo_overnight.servers import Served, answers, end_with_parent
from sandboxkit.integrations.grpo import plot

__all__ = ["Broken", "calibrated", "drive"]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "grpo" / "compose.toml"
MARK = "SANDBOXKIT_OVERNIGHT_LEG"
_TICK = 0.2
_TO_CHECKPOINT = 900.0
_CALIBRATED_ON = 12


class Broken(Exception):
    """The trainer ended in another way than it was made to."""


def drive(
    folder: Path,
    leg: Leg,
    plan: Plan,
    servers: Sequence[Served],
    stop: threading.Event,
) -> bool:
    """Go on to the leg's end, and return whether it came to it or `stop` was set before.

    Raises Broken. The servers answer already.
    """
    progress = Progress.load(leg)
    progress.pieces += 1
    driven = _Driven(folder, leg, plan, servers, progress)
    progress.done = progress.done and driven.step() >= plan.last(leg)
    progress.note("began" if progress.pieces == 1 else "went on", step=driven.step())
    while not progress.done and not stop.is_set():
        try:
            progress.done = driven.train(stop)
        finally:
            progress.save(leg)
    return progress.done


def calibrated(folder: Path, plan: Plan, servers: Sequence[Served]) -> Plan:
    """With so many steps as take the plan's hours here, by a few that are thrown away."""
    leg = Leg(folder / "calibration")
    few = replace(plan, steps=_CALIBRATED_ON)
    driven = _Driven(folder, leg, few, servers, Progress())
    if not driven.train(threading.Event()):
        raise Broken(f"the trainer did not end; see {leg.log}")
    took = [row["step_seconds"] for row in plot.rows(leg.run / "metrics.jsonl") if "reward" in row]
    shutil.rmtree(leg.folder)
    return replace(plan, steps=max(30, round(plan.hours * 3600 / statistics.median(took[2:]))))


@dataclass(slots=True)
class _Driven:
    folder: Path
    leg: Leg
    plan: Plan
    servers: Sequence[Served]
    progress: Progress
    down: dict[int, float] = field(default_factory=dict)
    """Killed servers, and the second at which they come back."""
    looked: float = -1e9
    kill_at: float = 0.0
    killed_in: int = 0

    def __post_init__(self) -> None:
        every = self.plan.kill_every
        self.kill_at = (self.progress.seconds // every + 1) * every

    def train(self, stop: threading.Event) -> bool:
        """Start the trainer and return when it has ended: whether it is done."""
        progress, before, begun = self.progress, self.progress.seconds, time.monotonic()
        process, wanted = self._start(), False
        try:
            while process.poll() is None:
                progress.seconds = before + time.monotonic() - begun
                self._look(process)
                step = self.step()
                if stop.is_set():
                    wanted = True
                    progress.note("stopped", step=step)
                elif self.leg.disturbed and not wanted:
                    self._disturb_servers(step)
                    wanted = self._is_time_for_a_signal(step)
                    if wanted:
                        progress.signals += 1
                        progress.note("SIGTERM", step=step)
                if wanted:
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_TO_CHECKPOINT)
                    break
                time.sleep(_TICK)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            progress.seconds = before + time.monotonic() - begun
        left = measures.left(process.pid, self._sandboxes, self._temporary, self._mark)
        progress.left += left
        # What was asked to end at its very beginning, or at its end, has nothing to write.
        expected = (128 + signal.SIGTERM, -signal.SIGTERM) if wanted else ()
        if process.returncode not in (*expected, 0):
            progress.note(f"ended with {process.returncode}", step=self.step())
            raise Broken(f"the trainer ended with {process.returncode}; see {self.leg.log}")
        return process.returncode == 0

    def step(self) -> int:
        """The last that is done."""
        path = self.leg.run / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 8192))
                line = file.read().splitlines()[-1]
            return int(json.loads(line)["step"])
        except (OSError, IndexError, ValueError, KeyError):
            return 0

    def _start(self) -> "subprocess.Popen[bytes]":
        for folder in (self._sandboxes, self._temporary, self.leg.run):
            folder.mkdir(parents=True, exist_ok=True)
        self._sandboxes.chmod(0o700)
        plugins = self.folder / "plugins"
        faults.install(plugins)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(plugins), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "TMPDIR": str(self._temporary),
            "SANDBOXKIT_STATE_DIR": str(self._sandboxes),
            MARK: str(self.leg.folder),
            **faults.environment(self.leg.faults, self.plan.rate, self.plan.seed),
        }
        provider = faults.NAME if self.leg.disturbed else "local"
        urls = [server.url for server in self.servers]
        settings = self.plan.settings(self.folder, self.leg, urls, provider)
        with self.leg.log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "sandboxkit.integrations.grpo", str(CONFIG)),
                    *(f"--set={each}" for each in settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=end_with_parent,
            )

    def _look(self, process: "subprocess.Popen[bytes]") -> None:
        progress = self.progress
        if progress.seconds - self.looked < self.plan.look_every:
            return
        self.looked = progress.seconds
        seen = {
            "seconds": round(progress.seconds, 1),
            "piece": progress.pieces,
            "pid": process.pid,
            "step": self.step(),
            "down": len(self.down),
            "disk_mb": measures.disk_mb(self.leg.folder),
            **measures.looks(process),
        }
        with self.leg.looks.open("a") as file:
            file.write(json.dumps(seen) + "\n")
        progress.save(self.leg)

    def _disturb_servers(self, step: int) -> None:
        progress, plan = self.progress, self.plan
        for number, until in tuple(self.down.items()):
            if progress.seconds >= until:
                self.servers[number].start()
                del self.down[number]
        number = progress.kills % len(self.servers)
        others = [each for each in self.servers if each is not self.servers[number]]
        # Never the last one, and only once in a step: how a run without servers ends, with a
        # message, is not for a long one to show.
        due = progress.seconds >= self.kill_at and step > self.killed_in
        if due and not self.down and all(map(answers, others)):
            self.kill_at, self.killed_in = progress.seconds + plan.kill_every, step
            self.servers[number].kill()
            self.down[number] = progress.seconds + plan.back_after
            progress.kills += 1
            progress.note(f"server {number} killed", step=step)

    def _is_time_for_a_signal(self, step: int) -> bool:
        done, every = self.progress.signals, self.plan.steps / (self.plan.signals + 1)
        return done < self.plan.signals and step >= every * (done + 1)

    @property
    def _sandboxes(self) -> Path:
        return self.leg.folder / "sandboxes"

    @property
    def _temporary(self) -> Path:
        return self.leg.folder / "tmp"

    @property
    def _mark(self) -> str:
        return f"{MARK}={self.leg.folder}"
