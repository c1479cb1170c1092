"""Measures the parts of a docker sandbox's time from creation to removal.

    python -m benchmarks.docker_start [--rounds N]

Prints two tables: the time of each part, one sandbox at a time; and the CPU time that this machine
spends per sandbox, for sandboxes as they are, with one change each, and for a container of docker-py.
Run it on an idle machine. `benchmarks.report` compares sandboxes with docker-py's containers.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import docker  # type: ignore[import-untyped]  # ships no types

from benchmarks.sides.serve import IMAGE
from sandboxkit import Session
from sandboxkit.providers.docker import DockerProvider, _container, _provider
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._loopback import Hosts

IN_FLIGHT, BATCH = 8, 16
SETTLES = 0.5
"""Seconds after a batch in which the daemon finishes asynchronous cleanup."""

Body = dict[str, Any]  # the body of Docker's create call
Change = Callable[[Body], object]

CHANGES: dict[str, Change] = {
    "without seccomp": lambda host: host["SecurityOpt"].pop(),
    "without limits of memory and processes": lambda host: [
        host.pop(name) for name in ("Memory", "MemorySwap", "PidsLimit")
    ],
    "without ulimits": lambda host: host.pop("Ulimits"),
    "without masked and read-only paths": lambda host: host.update(
        MaskedPaths=[], ReadonlyPaths=[]
    ),
    "without /dev/shm": lambda host: host.update(IpcMode="none"),
    "without AutoRemove": lambda host: host.update(AutoRemove=False),
    "with the log driver json-file": lambda host: host.update(LogConfig={"Type": "json-file"}),
}


@contextmanager
def container_of_docker_py() -> Iterator[Callable[..., None]]:
    """Yield a function that runs `true` in a new container; its options are those of `containers.run`."""
    client: Any = docker.from_env(max_pool_size=IN_FLIGHT)  # what it ships of types is half

    def run(**options: object) -> None:
        image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
        output = client.containers.run(image, ["true"], remove=True, stderr=True, **options)
        assert output == b""

    try:
        yield run
    finally:
        client.close()


def busy() -> float:
    """Return the CPU time of the whole machine so far, in milliseconds."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = (int(n) for n in file.readline().split()[1:8])
    return 1000 * (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Within the context, `change` modifies the body of Docker's create call of each sandbox."""
    make = _container.create_body

    def body(*args: Any, **options: Any) -> Body:
        made = make(*args, **options)
        host: Any = made["HostConfig"]
        change(host)
        return made

    with mock.patch.object(_container, "create_body", body):
        yield


@contextmanager
def with_endpoint() -> Iterator[None]:
    """Within the context, sandboxes get an endpoint in Docker's network "none", and an /etc/hosts."""
    with mock.patch.object(_provider, "hosts_from", return_value=Hosts.DAEMON):
        yield


@contextmanager
def with_kill() -> Iterator[None]:
    """Within the context, the daemon kills a sandbox instead of waiting for its agent to exit."""

    async def stays(provider: DockerProvider, sandbox_id: str) -> bool:
        return False

    with mock.patch.object(DockerProvider, "_left", stays):
        yield


@contextmanager
def timed(parts: dict[str, list[float]]) -> Iterator[None]:
    """Within the context, append the seconds of each part of a sandbox's lifecycle to `parts`."""

    def watched(owner: type, name: str, label: Callable[..., str]) -> Any:
        original = getattr(owner, name)

        async def call(*args: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await original(*args, **options)
            finally:
                parts[label(**options)].append(time.perf_counter() - begun)

        return mock.patch.object(owner, name, call)

    whats = {
        "look up the image": "image lookup",
        "create a sandbox": "create",
        "start a sandbox": "start",
        "remove a sandbox": "  waiting for the daemon",
    }

    def of_call(*, what: str, **_: object) -> str:
        return next((label for begin, label in whats.items() if what.startswith(begin)), what)

    with (
        watched(Daemon, "call", of_call),
        watched(Daemon, "stream", lambda **_: "attach"),
        watched(DockerProvider, "_attach", lambda **_: "waiting for the agent's first message"),
        watched(DockerProvider, "_write_hosts", lambda **_: "/etc/hosts written"),
        watched(DockerProvider, "exec", lambda **_: "`true`"),
        watched(DockerProvider, "delete", lambda **_: "delete"),
    ):
        yield


def live(session: Session) -> None:
    """Create a sandbox, run a command in it, and remove it."""
    session.run(["true"], check=True).result()


def parts_table(session: Session, rounds: int) -> None:
    """Print the table of parts, one sandbox at a time."""
    parts: dict[str, list[float]] = defaultdict(list)
    wholes = []
    live(session)
    with timed(parts):
        for _ in range(8 * rounds):
            begun = time.perf_counter()
            live(session)
            wholes.append(time.perf_counter() - begun)
    print(f"{'one at a time, medians':<44}{'ms':>8}")
    for part, seconds in parts.items():
        print(f"{part:<44}{statistics.median(seconds) * 1e3:>8.1f}")
    print(f"{'total':<44}{statistics.median(wholes) * 1e3:>8.1f}\n")


def steps_table(session: Session, rounds: int) -> None:
    """Print the table of CPU times per variant, eight sandboxes at a time."""
    steps: dict[str, Callable[[], Any]] = {
        "as it is": nullcontext,
        "with an endpoint in the network none": with_endpoint,
        "with a kill instead of the agent's exit": with_kill,
    }
    for name, change in CHANGES.items():
        steps[name] = partial(changed, change)
    spent: dict[str, list[float]] = defaultdict(list)
    walls: dict[str, list[float]] = defaultdict(list)

    def batch(pool: ThreadPoolExecutor, work: Callable[[], object]) -> tuple[float, float]:
        worked, begun = busy(), time.perf_counter()
        list(pool.map(lambda _: work(), range(BATCH)))
        wall = time.perf_counter() - begun
        time.sleep(SETTLES)
        return 1e3 * wall / BATCH, (busy() - worked) / BATCH

    with ThreadPoolExecutor(IN_FLIGHT) as pool, container_of_docker_py() as floor:
        for number in range(rounds + 1):
            for name, step in steps.items():
                with step():
                    wall, work = batch(pool, lambda: live(session))
                if number:
                    walls[name].append(wall)
                    spent[name].append(work)
            wall, work = batch(pool, lambda: floor(network_disabled=True))
            if number:
                walls["docker-py, without network (the floor)"].append(wall)
                spent["docker-py, without network (the floor)"].append(work)
    print(f"{f'{IN_FLIGHT} at a time, medians':<44}{'ms':>8}{'processor ms':>14}{'times':>8}")
    base = statistics.median(spent["as it is"])
    for name, works in spent.items():
        work = statistics.median(works)
        wall = statistics.median(walls[name])
        print(f"{name:<44}{wall:>8.1f}{work:>14.1f}{work / base:>8.2f}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the parts of a docker sandbox's time.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", IMAGE)
    with Session("docker") as session:
        parts_table(session, rounds)
        steps_table(session, rounds)


if __name__ == "__main__":
    main()
