"""Sandboxes of real backends that have an interpreter: one with one uid, and one with several."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxkit.provider import Provider
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Interpreter, SandboxSpec
from tests.agent.conftest import Run
from tests.docker_here import require_docker

__all__ = ["KINDS", "PythonBox", "python_box"]

KINDS = ("local", "docker")
PYTHON = "python3"


class PythonBox:
    """A sandbox, and short ways to run code there."""

    def __init__(self, provider: Provider, sandbox_id: str) -> None:
        self.provider, self.id = provider, sandbox_id

    async def job(self, code: str, *args: str, run: Run | None = None, **options: object) -> Run:
        """Run code in a fork of the interpreter."""
        run = run or Run()
        command = Command(("-c", *args), **options)  # type: ignore[arg-type]  # a shorthand
        run.exit = await self.provider.run_python(self.id, code, command, run.output)
        run.status = run.exit.status
        return run

    async def exec(self, *argv: str, run: Run | None = None, **options: object) -> Run:
        """Run a command."""
        run = run or Run()
        command = Command(argv, **options)  # type: ignore[arg-type]  # a shorthand
        run.exit = await self.provider.exec(self.id, command, run.output)
        run.status = run.exit.status
        return run

    async def says(self, code: str) -> str:
        """What a job prints."""
        run = await self.job(code)
        assert (run.status, run.stderr) == (0, b""), run.stderr
        return run.stdout.decode().strip()


@asynccontextmanager
async def python_box(kind: str, interpreter: Interpreter | None = None) -> AsyncIterator[PythonBox]:
    """A new sandbox of that kind, whose interpreter runs; where it is None there is none."""
    provider: Provider
    image = None
    if kind == "docker":
        image = require_docker()
        provider = DockerProvider()
    else:
        provider = LocalProvider()
    sandbox_id = await provider.create(SandboxSpec(image=image, profile="strict"))
    try:
        if interpreter is not None:
            await provider.start_interpreter(sandbox_id, interpreter)
        yield PythonBox(provider, sandbox_id)
    finally:
        await provider.delete(sandbox_id)
