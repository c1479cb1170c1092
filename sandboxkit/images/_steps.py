"""The steps of a recipe: a command that runs in the sandbox, and files that are copied into it."""

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio.to_thread

from sandboxkit._sandbox import Sandbox
from sandboxkit.datasets import content_digest
from sandboxkit.errors import CommandTimeoutError, ConfigurationError

_KEPT = 20
"""How many of a failed command's last lines an error shows."""


class StepFailed(Exception):
    """A step's command failed; the text gives the reason and the last lines."""


class ImageStep(Protocol):
    """One step of a recipe; equal content means an equal `digest()`."""

    @property
    def text(self) -> str:
        """The step as a line of a Dockerfile."""
        ...

    def digest(self) -> str:
        """Return a text that two steps share only if they do the same. Reads all content that is copied."""
        ...

    async def apply(self, sandbox: Sandbox, progress: Callable[[str], None], digest: str) -> None:
        """Carry the step out in a sandbox. Raises StepFailed, and SandboxError for the sandbox's failures.

        `digest` is what `digest()` returned when the build began; the step fails if that is not true any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command for `sh -e`, how long (s) it may take, and a shorter form of it for people."""

    command: str
    timeout: float
    shown: str = ""

    @property
    def text(self) -> str:
        return f"RUN {self.shown or self.command}"

    def digest(self) -> str:
        return f"RUN {self.command}"

    async def apply(self, sandbox: Sandbox, progress: Callable[[str], None], digest: str) -> None:
        script = f"exec 2>&1 </dev/null\n{self.command}"
        process = sandbox.exec(["sh", "-ec", script], timeout=self.timeout)
        last: list[str] = []
        async for line in process.stdout.lines():
            last = [*last[1 - _KEPT :], line]
            progress(line)
        shown = "".join(f"\n  {line}" for line in last)
        try:
            result = await process
        except CommandTimeoutError:
            raise StepFailed(f"did not end within {self.timeout:g} s{shown}") from None
        if result.returncode != 0:
            raise StepFailed(f"ended with status {result.returncode}{shown}")


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A file or folder of this machine, and where it is put."""

    local: str
    remote: str

    @property
    def text(self) -> str:
        return f"COPY {self.local} {self.remote}"

    def digest(self) -> str:
        if os.path.isdir(self.local):
            try:
                return f"COPY {content_digest(self.local)} {self.remote}"
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"cannot copy {self.local!r} into an image: {error}"
                ) from error
        try:
            with open(os.open(self.local, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise ConfigurationError(f"cannot copy {self.local!r}: it is not a file")
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigurationError(f"cannot copy {self.local!r}: {error.strerror}") from error
        return f"COPY {mode & 0o777:o} {content} {self.remote}"

    async def apply(self, sandbox: Sandbox, progress: Callable[[str], None], digest: str) -> None:
        await sandbox.upload(self.local, self.remote)
        if await anyio.to_thread.run_sync(self.digest) != digest:
            raise StepFailed("changed during the build")
