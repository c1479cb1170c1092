"""A soak: the cluster's programs are killed and frozen in turns while sandboxes run commands.

python -m tests.kubernetes.soak MINUTES [SEED]

Every output must be exact, every line of a command must have run once, and at the end no pod may be left.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import TypeVar

import anyio
import anyio.to_thread

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import SandboxSpec
from tests.kubernetes.cluster import Cluster, Program, find_cluster
from tests.kubernetes.here import Box, new_namespace

__all__ = ["FAULTS", "Soaked", "soak"]

T = TypeVar("T")

FAULTS: list[tuple[str, Program]] = [
    (how, program) for how in ("kill", "freeze") for program in ("api", "kubelet", "containerd")
]
_WORKERS = 4
_COMMANDS, _AT_ONCE = 15, 3
"""Each worker runs so many commands in a sandbox, so many at a time, and then starts another sandbox."""
_LINES = 20
_WORK = f"for n in $(seq {_LINES}); do echo $n; echo x >>ran-$0; sleep 0.1; done; exit 7"
_EXACT = (7, "".join(f"{n}\n" for n in range(1, _LINES + 1)), "")
_COUNT = "for f in ran-*; do echo ${f#ran-} $(wc -l <$f); done"
_LEASE = 60.0
_BACK = 120.0
"""Seconds after which a call that is repeated must have succeeded, on a loaded machine."""
_PAUSE, _OUTAGE = (1.0, 5.0), (2.0, 8.0)
"""The seconds between two faults, and from a fault until its program is started or thawed."""


@dataclass(slots=True)
class Soaked:
    """The result of a soak."""

    seconds: float = 0.0
    commands: int = 0
    """Commands with exact status and output, whose every line ran once."""
    unknown: int = 0
    """Commands that raised OutcomeUnknownError, and whose every line ran at most once."""
    repeated: int = 0
    """Calls that raised ProviderUnavailableError and were made again."""
    sandboxes: int = 0
    longest: float = 0.0
    """The longest time (s) that a command took, beyond its own two seconds."""
    faults: Counter[tuple[str, Program]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Wrong outputs, lines that ran twice or never, and errors."""
    left: list[str] = field(default_factory=list)
    """Pods that still ran when every lease was over."""

    def table(self) -> str:
        """Return the figures and everything that was wrong, one on a line."""
        faults = (f"{how} {program} {n}" for (how, program), n in sorted(self.faults.items()))
        figures = {each.name: getattr(self, each.name) for each in fields(self)}
        figures |= {"faults": f"{self.faults.total()}: {', '.join(faults)}"}
        figures |= {"wrong": len(self.wrong), "left": len(self.left)}
        lines = [f"{name:12}{value}" for name, value in figures.items()]
        return "\n".join([*lines, *self.wrong, *self.left])


class _Soak:
    def __init__(self, cluster: Cluster, namespace: str, *, seed: int) -> None:
        self.found = Soaked()
        self._cluster, self._namespace = cluster, namespace
        self._chance = random.Random(seed)
        self._over = False

    async def run(self, seconds: float) -> None:
        """Run commands beside faults for so many seconds, and at least until each fault occurred once."""
        began = time.monotonic()
        provider = KubernetesProvider(lease=_LEASE)
        try:
            async with anyio.create_task_group() as group:
                for _ in range(_WORKERS):
                    group.start_soon(self._work, provider)
                try:
                    while time.monotonic() < began + seconds:
                        for how, program in self._chance.sample(FAULTS, len(FAULTS)):
                            await anyio.sleep(self._chance.uniform(*_PAUSE))
                            outage = self._chance.uniform(*_OUTAGE)
                            await anyio.to_thread.run_sync(self._break, how, program, outage)
                            self.found.faults[how, program] += 1
                finally:
                    self._over = True
        finally:
            await provider.aclose()
        with anyio.move_on_after(_LEASE + 30):
            while self._running():
                await anyio.sleep(1)
        self.found.left = self._running()
        self.found.seconds = time.monotonic() - began

    def _running(self) -> list[str]:
        """Remove the pods that their lease has ended, and return the names of the others."""
        running: list[str] = []
        for pod in self._cluster.pods(self._namespace):
            name = pod["metadata"]["name"]
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                self._cluster.request("DELETE", f"/api/v1/namespaces/{self._namespace}/pods/{name}")
            else:
                running.append(name)
        return running

    def _break(self, how: str, program: Program, outage: float) -> None:
        broken = self._cluster.without if how == "kill" else self._cluster.frozen
        with broken(program):
            time.sleep(outage)

    async def _work(self, provider: KubernetesProvider) -> None:
        """Use one sandbox after another, until the time is over."""
        while not self._over:
            try:
                await self._use(provider)
            except (SandboxError, TimeoutError) as error:
                self.found.wrong.append(repr(error))
                await anyio.sleep(1)

    async def _use(self, provider: KubernetesProvider) -> None:
        """Start a sandbox, run commands in it, count the lines that they ran, and delete it."""
        box = Box(provider, await self._repeated(lambda: provider.create(SandboxSpec())))
        self.found.sandboxes += 1
        try:
            exact: set[int] = set()
            for first in range(0, _COMMANDS, _AT_ONCE):
                async with anyio.create_task_group() as group:
                    for number in range(first, first + _AT_ONCE):
                        group.start_soon(self._command, box, number, exact)
            counted = await self._repeated(lambda: box.run("sh", "-c", _COUNT))
            self._compare(box.id, exact, counted[1])
        finally:
            await self._repeated(lambda: provider.delete(box.id))

    def _compare(self, sandbox_id: str, exact: set[int], counted: str) -> None:
        """Compare the lines that commands ran with the commands whose output was exact."""
        ran = {int(name): int(lines) for name, lines in map(str.split, counted.splitlines())}
        for number in range(_COMMANDS):
            lines = ran.get(number, 0)
            if number in exact and lines == _LINES:
                self.found.commands += 1
            elif number in exact or lines > _LINES:
                self.found.wrong.append(f"{sandbox_id}: command {number} ran {lines} lines")

    async def _command(self, box: Box, number: int, exact: set[int]) -> None:
        began = time.monotonic()
        try:
            status = await self._repeated(
                lambda: box.run("sh", "-c", _WORK, str(number)), but=OutcomeUnknownError
            )
        except OutcomeUnknownError:
            self.found.unknown += 1
            return
        except (SandboxError, TimeoutError) as error:
            self.found.wrong.append(f"{box.id}: command {number}: {error!r}")
            return
        self.found.longest = max(self.found.longest, time.monotonic() - began - _LINES * 0.1)
        if status == _EXACT:
            exact.add(number)
        else:
            self.found.wrong.append(f"{box.id}: command {number} gave {status!r}")

    async def _repeated(
        self, call: Callable[[], Awaitable[T]], *, but: type[SandboxError] | None = None
    ) -> T:
        """Make a call again while the backend is unavailable; raises `but`, and the last error after _BACK."""
        deadline = time.monotonic() + _BACK
        while True:
            try:
                return await call()
            except (ProviderUnavailableError, OutcomeUnknownError) as error:
                if (but is not None and isinstance(error, but)) or time.monotonic() > deadline:
                    raise
                self.found.repeated += 1
                await anyio.sleep(0.5)


async def soak(cluster: Cluster, namespace: str, *, seconds: float, seed: int) -> Soaked:
    """Soak a cluster that nobody else uses, with sandboxes in the namespace; return what was found."""
    work = _Soak(cluster, namespace, seed=seed)
    await work.run(seconds)
    return work.found


def main(minutes: float, seed: int = 0) -> int:
    """Soak the cluster of scripts/kube.sh and print the result; return the exit status."""
    cluster = find_cluster()
    if isinstance(cluster, str) or not cluster.is_of_script:
        sys.exit(f"only the cluster of scripts/kube.sh can be soaked: {cluster}")
    with cluster.held(alone=True), new_namespace() as namespace:
        found = anyio.run(lambda: soak(cluster, namespace, seconds=60 * minutes, seed=seed))
        sys.stdout.write(f"{found.table()}\n")
    return 1 if found.wrong or found.left or not found.commands else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:])))
