"""Snapshots on local: copies of what sandboxes wrote, in the state folder, as lower layers of others."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio.from_thread
import anyio.to_thread

from sandboxkit.errors import (
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxNotFoundError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import Provider
from sandboxkit.providers.local import _layout, _sweep
from sandboxkit.providers.local._base import Base, made
from sandboxkit.providers.local._copy import TreeCopy
from sandboxkit.providers.local._freeze import frozen
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._state import OwnerProcess, SandboxRecord, StateDir
from sandboxkit.types import SandboxSpec, SnapshotInfo, SnapshotKind

__all__ = ["LocalSnapshots"]

_ID = re.compile(r"snapshot-[0-9a-f]{16}")
_TAKING = re.compile(r"\.(?:taking|removing)-(\d+-\d+-\d+)-\w+")
_META = "meta.json"
_KEPT_OUT = ("/.sandboxkit", "/etc/resolv.conf")
_NO_IMAGE = (
    "the local provider has no snapshots of sandboxes with an image yet: leave image= out, or use "
    "provider='docker'"
)


@dataclass(frozen=True, slots=True)
class _StoredInfo:
    """The description that is stored with a snapshot."""

    created: float
    expires: float
    bytes: int
    parent: str | None
    name: str | None
    tags: dict[str, str]
    folders: list[str]
    """The folders that it has: ["/"], or the writable folders of a strict sandbox."""


@dataclass(frozen=True, slots=True)
class _Store:
    """The folder of a user's snapshots, one folder each, named by its id once it is complete."""

    path: Path

    @classmethod
    def of(cls, state: StateDir) -> "_Store":
        """Return the store in a state folder."""
        return cls(state.path / "snapshots")

    def make(self) -> None:
        """Create the folder. It stays, because running providers have it mounted for their sandboxes."""
        self.path.mkdir(mode=0o755, exist_ok=True)

    def load(self, snapshot_id: str) -> _StoredInfo:
        """Return what is known about a snapshot. Raises SnapshotNotFoundError."""
        try:
            if _ID.fullmatch(snapshot_id):
                return _StoredInfo(**json.loads((self.path / snapshot_id / _META).read_bytes()))
        except FileNotFoundError:
            pass
        raise SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} in {self.path}; it was deleted, or has expired and was removed",
            provider="local",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in self._names() if _ID.fullmatch(name)))

    def _names(self) -> list[str]:
        return os.listdir(self.path) if self.path.is_dir() else []

    def temporary(self, why: str) -> Path:
        """Return a new path for a folder that `sweep` removes once this process is gone."""
        return self.path / f".{why}-{OwnerProcess.me()}-{secrets.token_hex(8)}"

    def sweep(self) -> None:
        """Remove what processes left that were killed while they took or removed a snapshot."""
        for name in self._names():
            match = _TAKING.fullmatch(name)
            if match is not None:
                maker = OwnerProcess.parse(match[1])
                if maker.is_here and not maker.alive():
                    shutil.rmtree(self.path / name, ignore_errors=True)

    @contextmanager
    def locked(self, snapshot_id: str, kind: int) -> Iterator[bool]:
        """Hold a lock on a snapshot; yield False if it is gone, or if another lock forbids this one."""
        try:
            folder = os.open(self.path / snapshot_id, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        try:
            with suppress(BlockingIOError):
                fcntl.flock(folder, kind | fcntl.LOCK_NB)
                yield (self.path / snapshot_id).exists()
                return
            yield False
        finally:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_UN)  # a fork may have a copy of the descriptor
            os.close(folder)


class LocalSnapshots(Provider):
    """The part of the local provider that has to do with snapshots."""

    _state: StateDir
    _host: HostUser

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a local snapshot keeps files alone; use kind='files'",
                provider=self.name,
            )
        if spec.image is not None:
            raise ConfigurationError(f"snapshot with image={spec.image!r}: {_NO_IMAGE}")

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        meta = self._state.load(sandbox_id)
        if meta is None or not self._state.alive(meta):
            raise SandboxNotFoundError(
                f"no sandbox {sandbox_id!r}; it may have ended",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        self.check_snapshot(SandboxSpec(image=meta.image), kind)
        if not meta.is_here:
            raise ProviderUnavailableError(
                f"sandbox {sandbox_id!r} was started in another container: take its snapshot there",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        known = _StoredInfo(0.0, expires, 0, meta.snapshot, name, dict(tags), meta.folders)
        return await anyio.to_thread.run_sync(self._take, meta, known)

    def _take(self, meta: SandboxRecord, known: _StoredInfo) -> SnapshotInfo:
        store = _Store.of(self._state)
        store.sweep()
        folder = store.temporary("taking")
        init = [*meta.processes][-1]
        try:
            store.make()
            folder.mkdir(mode=0o755)
            (folder / "root").mkdir(mode=0o755)
            with frozen(init):
                copied = self._copied(init, meta.folders, folder / "root")
                known = replace(known, bytes=copied, created=time.time())
            (folder / _META).write_text(json.dumps(asdict(known)))
            snapshot_id = f"snapshot-{secrets.token_hex(8)}"
            folder.rename(store.path / snapshot_id)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full(store.path, folder) from error
            raise ProviderUnavailableError(
                f"the files of sandbox {meta.id!r} cannot be copied to {store.path}: {error}",
                provider=self.name,
                sandbox_id=meta.id,
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self._described(snapshot_id, known)

    def _copied(self, init: int, folders: list[str], target: Path) -> int:
        """Copy a stopped sandbox's folders; return the number of bytes."""
        if not self._host.is_root and os.stat(f"/proc/{init}").st_uid != os.geteuid():
            raise ConfigurationError(
                "a sandbox with one of this user's subordinate ids has no snapshots yet: this user cannot read "
                "its files; take it as root, or on provider='docker'",
                provider=self.name,
            )
        with ExitStack() as stack:
            to = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, to)
            args, _ = _layout.system()
            fixed = made([*args, *_layout.folders_made()])
            mounted = _mounted(init)
            links = {args[at + 2] for at, each in enumerate(args) if each == "--symlink"}
            copy = TreeCopy(
                to,
                skipped={*mounted.difference(folders), *links, *_KEPT_OUT},
                folders={above for path in (*fixed, *mounted) for above in _above(path)},
                owner=self._host.owner() if self._host.is_root else None,
                between=anyio.from_thread.check_cancelled,
            )
            for path in folders:
                source = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
                try:
                    for part in path.strip("/").split("/"):
                        inner = os.open(part or ".", flags, dir_fd=source)
                        os.close(source)
                        source = inner
                    for parent in [*_above(path)][:-1]:
                        with suppress(FileExistsError):
                            os.mkdir(f"{target}{parent}", 0o755)
                    copy.add(source, path)
                finally:
                    os.close(source)
            return copy.bytes

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        store = _Store.of(self._state)
        store.sweep()
        for snapshot_id in store:
            with suppress(SnapshotNotFoundError):
                info = self._described(snapshot_id, store.load(snapshot_id))
                if tags.items() <= info.tags.items():
                    yield info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        if _ID.fullmatch(snapshot_id):
            await anyio.to_thread.run_sync(self._delete, snapshot_id)

    def _delete(self, snapshot_id: str) -> None:
        store = _Store.of(self._state)
        store.sweep()
        with store.locked(snapshot_id, fcntl.LOCK_EX) as free:
            if not free and not (store.path / snapshot_id).exists():
                return
            living = _sweep.sweep(self._state, self._runs_here)
            users = [meta.id for meta in living if meta.snapshot == snapshot_id]
            if users or not free:
                raise SnapshotInUseError(
                    f"snapshot {snapshot_id!r} is in use by {', '.join(users) or 'a start'}: stop the "
                    "sandboxes that started from it",
                    provider=self.name,
                )
            # Renamed first: a partly removed snapshot must not look like a whole one.
            removing = store.temporary("removing")
            (store.path / snapshot_id).rename(removing)
        shutil.rmtree(removing)

    def _runs_here(self, sandbox_id: str) -> bool:
        raise NotImplementedError

    @contextmanager
    def _base_of(self, spec: SandboxSpec) -> Iterator[Base | None]:
        """Yield the base of a sandbox that is being started; it is not removed meanwhile.

        Raises SnapshotNotFoundError, and ConfigurationError if the spec does not fit it.
        """
        if spec.snapshot is None:
            yield None
            return
        store = _Store.of(self._state)
        with store.locked(spec.snapshot, fcntl.LOCK_SH) as there:
            known = store.load(spec.snapshot)
            if not there:
                raise SnapshotNotFoundError(
                    f"snapshot {spec.snapshot!r} is being removed", provider=self.name
                )
            folders = known.folders
            profile = "standard" if folders == ["/"] else "strict"
            if profile != spec.profile:
                raise ConfigurationError(
                    f"profile={spec.profile!r}: snapshot {spec.snapshot!r} was taken of a sandbox with "
                    f"profile={profile!r}; give that",
                    provider=self.name,
                )
            yield Base(
                spec.snapshot, store.path / spec.snapshot / "root", store.path, tuple(folders)
            )

    def _described(self, snapshot_id: str, known: _StoredInfo) -> SnapshotInfo:
        return SnapshotInfo(
            id=snapshot_id,
            provider=self.name,
            kind="files",
            bytes=known.bytes,
            created_at=datetime.fromtimestamp(known.created, UTC),
            expires_at=datetime.fromtimestamp(known.expires, UTC),
            parent=known.parent,
            name=known.name,
            tags=known.tags,
        )


def _full(store: Path, partial: Path) -> CapacityError:
    usage = shutil.disk_usage(store)
    written = sum(
        os.lstat(os.path.join(folder, name)).st_blocks * 512
        for folder, _, names in os.walk(partial)
        for name in names
    )
    return CapacityError(
        f"the snapshot does not fit into {store}: the disk of {usage.total} bytes was full after {written} "
        "bytes of it; free space there with sandboxkit cleanup --snapshots, or set SANDBOXKIT_STATE_DIR to a folder on a larger disk",
        provider="local",
    )


def _mounted(init: int) -> set[str]:
    """Return the mount points that a sandbox's processes see, except the root."""
    with open(f"/proc/{init}/mountinfo") as file:
        points = {line.split()[4] for line in file}
    escaped = {
        point.encode().decode("unicode_escape") if "\\" in point else point for point in points
    }
    return escaped - {"/"}


def _above(path: str) -> Iterator[str]:
    """Yield the folders above a path, and the path itself."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:count])
