"""A reused docker sandbox against docker-py on a container of the same image."""

import io
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]  # ships no types

from benchmarks.comparisons import Comparison, faster, interleaved, near
from sandboxkit import Sandbox, Session

IN_FLIGHT = 8
BATCH = 32
PYTHON = ["python3", "-c", "print(1)"]

# What the interpreter costs inside the container when nobody talks to it from outside.
FLOOR = """
import subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
def one(_):
    subprocess.run(["python3", "-c", "print(1)"], stdout=subprocess.DEVNULL, check=True)
with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    started = time.perf_counter()
    list(pool.map(one, range(int(sys.argv[2]))))
    print(time.perf_counter() - started)
"""


@contextmanager
def both() -> Iterator[tuple[Sandbox, Any]]:
    """A started sandbox, and a container as docker-py users make one."""
    client = docker.from_env()
    container = client.containers.run(
        os.environ["SANDBOXKIT_DOCKER_IMAGE"],
        ["sleep", "3600"],
        detach=True,
        network_mode="none",
        init=True,
    )
    try:
        with Session("docker") as session, session.sandbox() as sandbox:
            yield sandbox, container
    finally:
        container.remove(force=True)
        client.close()


def command_latency(rounds: int) -> list[Comparison]:
    """One `true` after the other."""
    with both() as (sandbox, container):
        ours, theirs = interleaved(
            rounds,
            lambda: sandbox.exec(["true"]).result(),
            lambda: container.exec_run(["true"]),
        )
    return [faster("docker, `true` in a reused sandbox", ours, theirs, "docker-py exec_run", 30)]


def python_throughput(rounds: int) -> list[Comparison]:
    """`python3 -c`, eight in flight; seconds a command."""
    floors: list[float] = []
    with both() as (sandbox, container), ThreadPoolExecutor(IN_FLIGHT) as pool:

        def ours() -> None:
            list(pool.map(lambda _: sandbox.exec(PYTHON, check=True).result(), range(BATCH)))

        def theirs() -> None:
            list(pool.map(lambda _: container.exec_run(PYTHON), range(BATCH)))

        def floor() -> None:
            argv = ["python3", "-c", FLOOR, str(IN_FLIGHT), str(BATCH)]
            floors.append(float(sandbox.exec(argv, check=True).result().stdout))

        measured = interleaved(max(3, rounds // 3), ours, theirs, floor, repeats=1)
    per_command = [seconds / BATCH for seconds in (*measured[:2], sorted(floors)[len(floors) // 2])]
    name = f"docker, `python3 -c`, {IN_FLIGHT} in flight"
    return [
        faster(name, per_command[0], per_command[1], "docker-py exec_run", 4),
        near(f"{name}, against the floor", per_command[0], per_command[2], "in the container", 1.3),
    ]


def file_write(rounds: int) -> list[Comparison]:
    """A file of 1 KB."""
    data = os.urandom(1024)

    def put_archive(container: Any) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            member = tarfile.TarInfo("file")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        container.put_archive("/tmp", packed.getvalue())

    with both() as (sandbox, container):
        ours, theirs = interleaved(
            rounds,
            lambda: sandbox.write_file("/tmp/file", data).result(),
            lambda: put_archive(container),
        )
    return [faster("docker, write 1 KB", ours, theirs, "docker-py put_archive", 50)]
