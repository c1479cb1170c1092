"""The contract between sandboxkit and a sandbox backend: all that a provider author needs.

A provider is one class. Four methods are required, `create`, `exec`, `list` and `delete`;
everything else has a default built on `exec` and may be replaced by something better. All
methods run on sandboxkit's background event loop. `sandboxkit.testing.ProviderConformance`
checks the contract.

Providers implement no timeouts: the core cancels `exec`. They do not retry, do not keep count
of what they created, and raise only errors of `sandboxkit.errors`.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from typing import ClassVar, Literal

from sandboxkit import _exec_files
from sandboxkit.errors import ConfigurationError, SandboxNotFoundError
from sandboxkit.types import Command, Diagnosis, FileInfo, SandboxInfo, SandboxSpec, Usage

__all__ = ["Output", "Provider", "StreamName"]

StreamName = Literal["stdout", "stderr"]

Output = Callable[[StreamName, bytes], Awaitable[None]]
"""Where `exec` delivers output; awaiting it is the backpressure."""


class Provider(ABC):
    """One backend. Implement the four abstract methods; the rest have defaults built on them."""

    name: ClassVar[str]
    """The entry point's name, such as "docker"."""

    def check(self, spec: SandboxSpec) -> None:
        """Refuse a spec that this backend cannot honour, before any I/O.

        Raises:
            ConfigurationError: naming the field, its value and the remedy.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> str:
        """Start a sandbox and return its id, a flat string that another process can use.

        Returned: the id, once commands can run. `spec.workdir` exists, `spec.files` is not the
        provider's business (the core writes them).
        The spec's tags are stored with the sandbox, all of them, as the backend's own labels.
        Raised: `ImageNotFoundError`, `CapacityError`, `SandboxStartError`,
        `ProviderUnavailableError`, `AuthenticationError`.
        Failed or cancelled: nothing of the sandbox exists when the call returns.
        Not detached: the sandbox ends soon after this process does, if the backend can.
        Always: the sandbox ends by itself after `spec.lifetime` seconds.
        """

    @abstractmethod
    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        """Run a command and return its exit status: 0 to 255, 128 + n when signal n killed it.

        Returned: any exit status. 127 when `argv[0]` does not exist, 126 when it cannot be
        executed or `cwd` cannot be entered, with one line on stderr that says so.
        Raised: `SandboxNotFoundError` if there is no such sandbox, `SandboxTerminatedError` if
        it ends meanwhile, `ConfigurationError` for an option that cannot be honoured,
        `ProviderUnavailableError` if the way to it breaks. Never for the program's own failure.
        Output is delivered exactly, in order per stream, while the command runs; all of it has
        been delivered when the call returns. A background child that holds stdout open does
        not hold up the return once the command itself has exited.
        Cancelled: the command's whole process tree is dead when the call returns, children
        that called setsid or were orphaned included, and other commands of the same sandbox
        are untouched.
        """

    @abstractmethod
    def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Iterate over the sandboxes that carry all of `tags`, whichever process made them."""

    @abstractmethod
    async def delete(self, sandbox_id: str) -> None:
        """End a sandbox and remove everything of it. Idempotent: an unknown id is no error."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Describe one sandbox. Raises SandboxNotFoundError when there is none."""
        async for info in self.list({}):
            if info.id == sandbox_id:
                return info
        raise SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        """Read a whole regular file, links followed.

        Raises SandboxFileNotFoundError, or SandboxFileError for a directory, a special file,
        no permission, or more than `max_bytes`.
        """
        return await _exec_files.read_file(self, sandbox_id, path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        """Write a file atomically, making parent folders; `mode` None keeps the old or 0o644."""
        await _exec_files.write_file(self, sandbox_id, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream into the folder `path`, which is created with its parents."""
        await _exec_files.put_archive(self, sandbox_id, path, tar)

    def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Stream a tar of `path`: of its contents, named relative to it, for a folder; of the
        one member named as the file otherwise. Raises SandboxFileNotFoundError."""
        return _exec_files.get_archive(self, sandbox_id, path)

    async def list_dir(self, sandbox_id: str, path: str) -> builtins.list[FileInfo]:
        """List a folder, sorted by path; each `FileInfo.path` is absolute.

        Raises SandboxFileError for more than 50,000 entries or 8 MiB of them, and reads no more.
        """
        return await _exec_files.list_dir(self, sandbox_id, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        """Describe one path without following a final link."""
        return await _exec_files.stat(self, sandbox_id, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        """Remove a file, a link, an empty folder, or with `recursive` a tree."""
        await _exec_files.remove(self, sandbox_id, path, recursive)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        """Let the sandbox live `lifetime` seconds from now."""
        raise ConfigurationError(f"provider {self.name!r} cannot renew a sandbox's lifetime")

    async def logs(self, sandbox_id: str) -> bytes:
        """Return the newest output of the sandbox's main command, at least its last 1 MiB."""
        raise ConfigurationError(f"provider {self.name!r} keeps no logs")

    async def wait(self, sandbox_id: str) -> int:
        """Wait for the main command to end and return its exit status.

        Raises SandboxTerminatedError or SandboxNotFoundError when the sandbox ends first.
        """
        raise ConfigurationError(f"provider {self.name!r} cannot wait for a main command")

    async def usage(self, sandbox_id: str) -> Usage | None:
        """Say what the sandbox has used; None, the default, where nothing trusted can tell.

        No process of the sandbox can make a figure other than it is: what one could feign is
        None. `starved_seconds` therefore needs exact `processor_seconds`, those of children that
        nobody waited for included: a process waits as well for another one of its own sandbox.
        Raises `SandboxNotFoundError`, `SandboxTerminatedError`, `ProviderUnavailableError`.
        """
        return None

    async def diagnose(self) -> Diagnosis:
        """Say whether this backend can work here, without creating a sandbox."""
        return Diagnosis(available=True, isolation="unknown", detail="")

    async def aclose(self) -> None:
        """Release connections. Sandboxes that are not detached may end with them."""
