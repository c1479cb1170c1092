"""Fresh Docker sandboxes against docker-py's containers of the same image."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]  # ships no types

from benchmarks.comparisons import Comparison, faster, interleaved
from sandboxkit import Session

IN_FLIGHT = 8
BATCH = 32


@contextmanager
def container_of_docker_py() -> Iterator[Callable[..., None]]:
    """Does `true` in a container of its own, with further options of `containers.run`."""
    client: Any = docker.from_env(max_pool_size=IN_FLIGHT)  # what it ships of types is half

    def run(**options: object) -> None:
        image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
        said = client.containers.run(image, ["true"], remove=True, stderr=True, **options)
        assert said == b""

    try:
        yield run
    finally:
        client.close()


def fresh_throughput(rounds: int) -> list[Comparison]:
    """`true` in a sandbox of its own, eight at a time, each removed; seconds a sandbox."""
    with (
        Session("docker") as session,
        container_of_docker_py() as run,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):

        def ours() -> None:
            list(pool.map(lambda _: session.run(["true"], check=True).result(), range(BATCH)))

        def theirs(**options: object) -> None:
            list(pool.map(lambda _: run(**options), range(BATCH)))

        measured = interleaved(
            max(3, rounds // 2), ours, lambda: theirs(network_mode="none"), theirs, repeats=1
        )
    own, none, bridge = (seconds / BATCH for seconds in measured)
    name = f"docker, a fresh sandbox and `true`, {IN_FLIGHT} in flight"
    return [
        faster(name, own, none, "docker-py containers.run without a network", 1.8),
        faster(f"{name}, bridge", own, bridge, "docker-py containers.run", 1.8),
    ]
