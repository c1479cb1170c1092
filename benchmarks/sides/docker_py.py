"""docker-py, as its users write it: a container for each command, or `exec_run` in one."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]  # ships no types

from benchmarks.sides.serve import IMAGE, LABEL, Work, expect, serve


@contextmanager
def fresh(argv: list[str], stdout: str) -> Iterator[Work]:
    """`containers.run(remove=True)` without a network."""
    client = docker.from_env(timeout=60)

    def one(_: int) -> None:
        output = client.containers.run(
            IMAGE, argv, network_mode="none", labels=[LABEL], remove=True, stderr=True
        )
        expect("output", output.decode(), stdout)

    yield Work(one)
    client.close()


@contextmanager
def _container() -> Iterator[Any]:
    client = docker.from_env(timeout=60)
    container = client.containers.run(
        IMAGE, ["sleep", "3600"], detach=True, network_mode="none", init=True, labels=[LABEL]
    )
    try:
        yield container
    finally:
        container.remove(force=True)
        client.close()


@contextmanager
def living(argv: list[str], stdout: str) -> Iterator[Work]:
    """`exec_run` in a container that lives."""
    with _container() as container:

        def one(_: int) -> None:
            done = container.exec_run(argv)
            expect("status and output", (done.exit_code, done.output.decode()), (0, stdout))

        yield Work(one)


@contextmanager
def write() -> Iterator[Work]:
    """A file of 1 KB by `put_archive`."""
    data = os.urandom(1024)
    with _container() as container:

        def one(_: int) -> None:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as tar:
                member = tarfile.TarInfo("file")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            expect("put_archive", container.put_archive("/tmp", packed.getvalue()), True)

        yield Work(one)
        done = container.exec_run(["sha256sum", "/tmp/file"])
        expect("file", done.output.split()[0].decode(), hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    serve(docker.__version__, {"fresh": fresh, "living": living, "write": write})
