"""SWE-ReX on Docker, with its server in the image: a deployment for each command, or one that lives.

Its server is reached over a port of the container, which therefore has the daemon's default network.
"""

import asyncio
import logging
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path

from swerex.deployment.docker import DockerDeployment  # type: ignore[import-not-found]  # in its own environment
from swerex.runtime.abstract import Command  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.serve import IMAGE, LABEL, Work, expect, serve

WITH_SERVER = f"sandboxkit-bench/swe-rex:{version('swe-rex')}"
DOCKERFILE = f"""
FROM {IMAGE}
COPY site-packages /opt/swe-rex
ENV PYTHONPATH=/opt/swe-rex
RUN printf '#!/bin/sh\\nexec python3 -m swerex.server "$@"\\n' > /usr/local/bin/swerex-remote && chmod +x /usr/local/bin/swerex-remote
"""


def build() -> None:
    """Make the image with the server, from this environment's packages, unless it is there."""
    if not subprocess.run(["docker", "inspect", WITH_SERVER], capture_output=True).returncode:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
        packages = Path(sys.prefix) / "lib/python3.11/site-packages"
        subprocess.run(["cp", "-a", packages, f"{folder}/site-packages"], check=True)
        argv = ["docker", "build", "--network", "none", "-q", "-t", WITH_SERVER, folder]
        subprocess.run(argv, check=True, capture_output=True)


async def _run(deployment: DockerDeployment, argv: list[str], stdout: str) -> None:
    done = await deployment.runtime.execute(Command(command=argv, timeout=30))
    expect("status and output", (done.exit_code, done.stdout), (0, stdout))


def _deployment() -> DockerDeployment:
    return DockerDeployment(
        image=WITH_SERVER, pull="never", docker_args=["--label", LABEL], startup_timeout=30
    )


@contextmanager
def fresh(argv: list[str], stdout: str) -> Iterator[Work]:
    """Start a deployment, run, stop it; each on a loop of its own, since a start blocks the loop."""
    build()

    async def run() -> None:
        deployment = _deployment()
        await deployment.start()
        try:
            await _run(deployment, argv, stdout)
        finally:
            await deployment.stop()

    yield Work(lambda _: asyncio.run(run()))


@asynccontextmanager
async def living(argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """`execute` in a deployment that lives."""
    build()
    deployment = _deployment()
    await deployment.start()
    try:

        async def one(_: int) -> None:
            await _run(deployment, argv, stdout)

        yield Work(one)
    finally:
        await deployment.stop()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    serve(version("swe-rex"), {"fresh": fresh, "living": living})
