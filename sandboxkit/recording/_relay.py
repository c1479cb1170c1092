"""Relay: a Provider whose simple calls all go through one method, for recordings and replays."""

import builtins
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from sandboxkit import _tags
from sandboxkit.provider import Provider
from sandboxkit.types import (
    Diagnosis,
    FileInfo,
    Interpreter,
    PublicUrl,
    SandboxInfo,
    SnapshotInfo,
    SnapshotKind,
    Usage,
)


class Relay(Provider):
    """A Provider that passes each simple call to `call`, with its result type, name and arguments.

    It has no `reset`: which job gets which sandbox of a pool depends on timing.
    """

    # Any: arguments and results of all calls.
    @abstractmethod
    async def call(
        self, returns: Any, name: str, sandbox_id: str | None, /, **arguments: Any
    ) -> Any:
        """Make the call `name` with these arguments, and return a value of the type `returns`."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """See `Provider.get`."""
        info: SandboxInfo = await self.call(SandboxInfo, "get", sandbox_id)
        return info

    async def ready(self, sandbox_id: str) -> bool:
        """See `Provider.ready`."""
        alive: bool = await self.call(bool, "ready", sandbox_id)
        return alive

    async def workdir(self, sandbox_id: str) -> str:
        """See `Provider.workdir`."""
        folder: str = await self.call(str, "workdir", sandbox_id)
        return folder

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        """See `Provider.read_file`."""
        data: bytes = await self.call(
            bytes, "read_file", sandbox_id, path=path, max_bytes=max_bytes
        )
        return data

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        """See `Provider.write_file`."""
        await self.call(None, "write_file", sandbox_id, path=path, data=data, mode=mode)

    async def list_dir(self, sandbox_id: str, path: str) -> builtins.list[FileInfo]:
        """See `Provider.list_dir`."""
        kind = builtins.list[FileInfo]
        entries: builtins.list[FileInfo] = await self.call(kind, "list_dir", sandbox_id, path=path)
        return entries

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        """See `Provider.stat`."""
        info: FileInfo = await self.call(FileInfo, "stat", sandbox_id, path=path)
        return info

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        """See `Provider.remove`."""
        await self.call(None, "remove", sandbox_id, path=path, recursive=recursive)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        """See `Provider.renew`."""
        await self.call(None, "renew", sandbox_id, lifetime=lifetime)

    async def logs(self, sandbox_id: str) -> bytes:
        """See `Provider.logs`."""
        data: bytes = await self.call(bytes, "logs", sandbox_id)
        return data

    async def wait(self, sandbox_id: str) -> int:
        """See `Provider.wait`."""
        status: int = await self.call(int, "wait", sandbox_id)
        return status

    async def usage(self, sandbox_id: str) -> Usage | None:
        """See `Provider.usage`."""
        used: Usage | None = await self.call(Usage, "usage", sandbox_id)
        return used

    async def start_interpreter(self, sandbox_id: str, interpreter: Interpreter) -> None:
        """See `Provider.start_interpreter`."""
        await self.call(None, "start_interpreter", sandbox_id, interpreter=interpreter)

    async def check_ports(self, sandbox_id: str) -> None:
        """See `Provider.check_ports`."""
        await self.call(None, "check_ports", sandbox_id)

    async def public_url(self, sandbox_id: str, port: int) -> PublicUrl:
        """See `Provider.public_url`."""
        url: PublicUrl = await self.call(PublicUrl, "public_url", sandbox_id, port=port)
        return url

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        """See `Provider.take_snapshot`."""
        info: SnapshotInfo = await self.call(
            SnapshotInfo,
            "take_snapshot",
            sandbox_id,
            kind=kind,
            name=name,
            tags=tags,
            expires=expires,
        )
        return info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """See `Provider.delete_snapshot`."""
        await self.call(None, "delete_snapshot", None, snapshot_id=snapshot_id)

    async def pause(self, sandbox_id: str) -> None:
        """See `Provider.pause`."""
        await self.call(None, "pause", sandbox_id)

    async def resume(self, sandbox_id: str) -> None:
        """See `Provider.resume`."""
        await self.call(None, "resume", sandbox_id)

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        """See `Provider.remove_unused_datasets`."""
        names: builtins.list[str] = await self.call(
            builtins.list[str], "remove_unused_datasets", None, dry_run=dry_run
        )
        return names

    async def list_volumes(self) -> builtins.list[str]:
        """See `Provider.list_volumes`."""
        names: builtins.list[str] = await self.call(builtins.list[str], "list_volumes", None)
        return names

    async def remove_volume(self, name: str) -> None:
        """See `Provider.remove_volume`."""
        await self.call(None, "remove_volume", None, name=name)

    async def diagnose(self) -> Diagnosis:
        """See `Provider.diagnose`."""
        found: Diagnosis = await self.call(Diagnosis, "diagnose", None)
        return found


# Any: arguments of all calls.
def compared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a replay compares calls: without times and sandboxkit's own tags."""
    kept = {name: value for name, value in arguments.items() if name != "expires"}
    if "tags" in kept:
        kept["tags"] = _tags.public(kept["tags"])
    return kept
