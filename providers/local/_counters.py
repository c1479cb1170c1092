"""Reads a sandbox's control group counters, and attributes their changes to a command."""

import os
import re
import signal
from contextlib import closing
from dataclasses import dataclass

from sandboxkit.types import CommandUsage, Ending, Exit

_KILLED = 128 + signal.SIGKILL
# In control groups v1 and v2, respectively.
_OOM_FILES = ("memory.oom_control", "memory.events")
_OOM_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_THROTTLED = re.compile(rb"^throttled_(?:time|(usec)) (\d+)$", re.MULTILINE)
_UNIT = {None: 1e9, b"usec": 1e6}
# CPU time in v1, in nanoseconds; v2 has it in cpu.stat.
_USED_FILE = "cpuacct.usage"
_USED = re.compile(rb"^usage_usec (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the sandbox's start; None where no control group counts."""

    oom_kills: int | None = None
    throttled_seconds: float | None = None


class Counters:
    """A sandbox's counter files, kept open because each command reads them twice."""

    def __init__(self, groups: list[str], *, cpus: bool = True) -> None:
        """`cpus`: whether the groups may have a limit of CPU time. The kernel throttles no other group."""
        self._may_throttle = cpus
        self._oom_kills = _open(groups, *_OOM_FILES)
        self._throttled = _open(groups, "cpu.stat")
        self._used = _open(groups, _USED_FILE)
        self._texts = b"", b""
        self._counts = Counts()

    def read(self) -> Counts:
        """Return the current counts."""
        seen = self._texts[1]
        throttled = _read(self._throttled) if self._may_throttle or not seen else seen
        texts = _read(self._oom_kills), throttled
        if texts != self._texts:
            self._texts = texts
            oom, cpu = _OOM_KILLS.search(texts[0]), _THROTTLED.search(texts[1])
            self._counts = Counts(
                None if oom is None else int(oom[1]),
                None if cpu is None else int(cpu[2]) / _UNIT[cpu[1]],
            )
        return self._counts

    def processor_seconds(self) -> float | None:
        """Return the CPU seconds of all processes so far, dead ones included; None if not counted."""
        if text := _read(self._used):
            return int(text) / 1e9
        used = _USED.search(_read(self._throttled))
        return None if used is None else int(used[1]) / 1e6

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in (self._oom_kills, self._throttled, self._used):
            if file is not None:
                os.close(file)
        self._oom_kills = self._throttled = self._used = None


def out_of_memory(groups: list[str]) -> bool:
    """Whether the kernel's OOM killer killed a process of the sandbox."""
    with closing(Counters(groups)) as counters:
        return bool(counters.read().oom_kills)


def _open(groups: list[str], *names: str) -> int | None:
    for group in groups:
        for name in names:
            try:
                return os.open(f"{group}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # the group is gone, or of another controller
    return None


def _read(file: int | None) -> bytes:
    if file is None:
        return b""
    try:
        return os.pread(file, 4096, 0)
    except OSError:
        return b""  # the group was just removed


def attributed(ended: Exit, before: Counts, after: Counts) -> Exit:
    """Return a command's Exit with the counts of the time in which it ran.

    The counts are those of the whole sandbox, including concurrent commands. If a command died of
    SIGKILL and the OOM killer killed a process meanwhile, the command is assumed to be the victim:
    sandboxkit's own kills have another `ending`, and other causes are less likely.
    """
    usage = ended.usage
    oom_kills, throttled = usage.oom_kills, usage.throttled_seconds
    if before.oom_kills is not None and after.oom_kills is not None:
        oom_kills = after.oom_kills - before.oom_kills
    if before.throttled_seconds is not None and after.throttled_seconds is not None:
        throttled = after.throttled_seconds - before.throttled_seconds
    ending = ended.ending
    if ending in (Ending.SIGNAL, None) and ended.status == _KILLED and oom_kills is not None:
        ending = Ending.OUT_OF_MEMORY if oom_kills else Ending.SIGNAL
    return Exit(
        ended.status,
        ending,
        CommandUsage(usage.processor_seconds, usage.peak_memory_bytes, throttled, oom_kills),
    )
