"""aiodocker, as its users write it: a container for each command, or an exec in one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import aiodocker  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.serve import IMAGE, LABEL, Work, expect, serve


def _config(argv: list[str]) -> dict[str, Any]:
    return {
        "Image": IMAGE,
        "Cmd": argv,
        "Labels": {LABEL: ""},
        "HostConfig": {"NetworkMode": "none", "Init": True},
    }


@asynccontextmanager
async def fresh(argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """Create, start, wait, read the log, delete."""
    async with aiodocker.Docker() as client:

        async def one(_: int) -> None:
            container = await client.containers.run(_config(argv))
            try:
                status = (await container.wait())["StatusCode"]
                output = "".join(await container.log(stdout=True, stderr=True))
            finally:
                await container.delete(force=True)
            expect("status and output", (status, output), (0, stdout))

        yield Work(one)


@asynccontextmanager
async def living(argv: list[str], stdout: str) -> AsyncIterator[Work]:
    """An exec in a container that lives."""
    async with aiodocker.Docker() as client:
        container = await client.containers.run(_config(["sleep", "3600"]))
        try:

            async def one(_: int) -> None:
                command = await container.exec(argv)
                text = b""
                async with command.start(detach=False) as stream:
                    while message := await stream.read_out():
                        text += message.data
                status = None
                for _unused in range(1000):  # the stream's end may come before the status does
                    if (status := (await command.inspect())["ExitCode"]) is not None:
                        break
                    await asyncio.sleep(0.001)
                expect("status and output", (status, text.decode()), (0, stdout))

            yield Work(one)
        finally:
            await container.delete(force=True)


if __name__ == "__main__":
    serve(version("aiodocker"), {"fresh": fresh, "living": living})
