"""Snapshots on local: copies of what sandboxes wrote, in the state folder, as lower layers of others."""

import errno
import fcntl
import os
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio.to_thread

from sandboxkit.errors import (
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import PathLock, Provider, is_expired
from sandboxkit.providers._gvisor import is_gvisor
from sandboxkit.providers.local import _image, _layout, _spec, _sweep
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._copier import copy_files
from sandboxkit.providers.local._folders import make_folder
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.providers.local._landlock import is_landlock
from sandboxkit.providers.local._mount_points import made
from sandboxkit.providers.local._snapshot_store import (
    LIMIT_VARIABLE,
    META,
    SNAPSHOT_ID,
    DiskUse,
    SnapshotStore,
    StoredSnapshot,
    disk_use,
    full_disk,
)
from sandboxkit.providers.local._state import SandboxRecord, StateDir
from sandboxkit.types import (
    Dockerfile,
    Profile,
    SandboxSpec,
    SnapshotInfo,
    SnapshotKind,
    SnapshotRequest,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT_OUT = ("/.sandboxkit", "/etc/resolv.conf")


class LocalSnapshots(Provider):
    """The part of the local provider that has to do with snapshots."""

    state: StateDir
    host: HostUser

    def _store(self) -> SnapshotStore:
        """Return the folder of snapshots: root's lie beside the images if nobody maps owners in the state folder.

        Before Linux 6.3 that is so in memory, such as /run. Sandboxes would share a host uid there.
        """
        place = self.state.path
        chosen = "SANDBOXKIT_STATE_DIR" in os.environ or not self.host.makes_namespaces
        if not chosen and not self.host.maps_owners(place):
            with suppress(OSError):  # a system that is read-only
                beside = _image.cache(self.host) / "state"
                beside.mkdir(mode=0o700, exist_ok=True)
                if self.host.maps_owners(beside):
                    place = beside
        return SnapshotStore(place / "snapshots")

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if is_gvisor(spec) and spec.snapshot is None:
            raise ConfigurationError(
                "isolation='gvisor': gVisor has the files in its own memory, and no snapshot reads "
                "them; take the snapshot in a sandbox without isolation="
            )
        if is_landlock(spec):
            raise ConfigurationError(
                "isolation='landlock': the files are in no root of their own; download them, or take the snapshot in "
                "a sandbox with namespaces"
            )
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a local snapshot keeps files alone; use kind='files'"
            )
        if spec.image is not None and spec.profile == "strict":
            raise ConfigurationError(
                f"profile='strict': the local provider has no snapshots of strict sandboxes with "
                f"image={spec.image!r}; use profile='standard', or provider='docker'"
            )

    @asynccontextmanager
    async def built_image(
        self, file: Dockerfile, network: str, tell: Callable[[str], None]
    ) -> AsyncIterator[str]:
        await anyio.to_thread.run_sync(self._remove_builds)
        yield await _image.build(file, network, tell, self.host, self.state.path)

    def _remove_builds(self) -> None:
        used = {each.image for each in self._store().known().values()}
        used |= {each.image for each in _sweep.sweep(self.state, self._runs_here)}
        _image.remove_builds(self.host, self.state.path, used)

    async def take_snapshot_of(self, meta: SandboxRecord, request: SnapshotRequest) -> SnapshotInfo:
        """Store the files of a sandbox that runs; see `Box.take_snapshot`."""
        profile = _profile(meta.folders)
        self.check_snapshot(
            SandboxSpec(image=meta.image, isolation=meta.isolation, profile=profile), request.kind
        )
        if not meta.is_here:
            raise ProviderUnavailableError(
                f"sandbox {meta.id!r} was started in another container: take its snapshot there"
            )
        name, tags = request.name, dict(request.tags)
        known = StoredSnapshot(0.0, request.expires, 0, meta.snapshot, name, tags, meta.folders)
        image = self._image_of(meta)
        if image is not None:
            known = replace(known, image=image.reference, image_version=image.version())
        return await anyio.to_thread.run_sync(self._take, meta, known, image)

    def _image_of(self, meta: SandboxRecord) -> LocalImage | None:
        """Return the image on which a sandbox runs, whatever its name means by now.

        Raises ImageNotFoundError if its files are gone, and ConfigurationError if they have changed.
        """
        if meta.image is None:
            return None
        used = meta.used_image
        if used is None:
            raise ConfigurationError(
                f"sandbox {meta.id!r} was started by an older version of sandboxkit, which did not record its "
                "image: take the snapshot of a sandbox that this version starts"
            )
        image = LocalImage(Path(used.root), used.reference)
        if image.version() != used.version:
            raise ConfigurationError(
                f"image={used.reference!r} has changed since sandbox {meta.id!r} started: take the snapshot of a "
                "new sandbox"
            )
        return image

    def _take(
        self, meta: SandboxRecord, known: StoredSnapshot, image: LocalImage | None
    ) -> SnapshotInfo:
        store = self._store()
        snapshot_id, written = f"snapshot-{secrets.token_hex(8)}", DiskUse()
        try:
            store.make()
            with store.temporary() as temporary:
                make_folder(folder := temporary / "whole")
                init = [*meta.processes][-1]
                copy = partial(self._copied, init, meta.folders, folder / "root", image)
                try:
                    use = self._copied_with_room(store, copy)
                    known = replace(known, bytes=use.bytes, inodes=use.inodes, created=time.time())
                    self._make_room(store, use)
                    (folder / META).write_text(known.to_json())
                    os.utime(folder / META, (known.created, known.created))
                    folder.rename(store.path / snapshot_id)
                except OSError as error:
                    if error.errno in _FULL:
                        written = disk_use(folder)
                    raise
        except OSError as error:
            if error.errno in _FULL:
                raise full_disk(store.path, written) from error
            raise ProviderUnavailableError(
                f"the files of sandbox {meta.id!r} cannot be copied to {store.path}: {error}"
            ) from error
        return self._described(snapshot_id, known)

    def _copied_with_room(self, store: SnapshotStore, copy: Callable[[], DiskUse]) -> DiskUse:
        """Copy as `_copied`; if the disk was full, remove what may go and copy once more."""
        try:
            return copy()
        except OSError as error:
            known = store.known()
            everything = DiskUse(sys.maxsize, sys.maxsize)
            if error.errno not in _FULL or not self._evict(self._removable(known), everything):
                raise
            return copy()

    def _removable(self, known: dict[str, StoredSnapshot]) -> dict[str, DiskUse]:
        """Return the sizes of the snapshots that may go: expired ones, then images, the least recently used first.

        A snapshot that a sandbox uses may not.
        """
        used = {meta.snapshot for meta in _sweep.sweep(self.state, self._runs_here)}
        found = sorted(
            (not expired, each.used or each.created, name)
            for name, each in known.items()
            if name not in used
            and (
                (expired := is_expired(self._described(name, each)))
                or SnapshotInfo.image_tag in each.tags
            )
        )
        return {name: known[name].use for *_, name in found}

    def _evict(self, removable: dict[str, DiskUse], wanted: DiskUse) -> dict[str, DiskUse]:
        """Remove snapshots in their order until `wanted` is free; return those that it removed."""
        removed = dict[str, DiskUse]()
        for name, use in removable.items():
            if (DiskUse.all(removed.values()) - wanted).fits():
                break
            with suppress(SnapshotInUseError):
                self._delete(name)
                removed[name] = use
        return removed

    def _make_room(self, store: SnapshotStore, use: DiskUse) -> None:
        """Remove snapshots until one of this size fits. Raises CapacityError if it does not fit."""
        limit, known = store.limit(), store.known()
        free = limit - use - DiskUse.all(each.use for each in known.values())
        removable = {} if free.fits() else self._removable(known)
        if (free + DiskUse.all(removable.values())).fits():
            for name, freed in self._evict(removable, DiskUse() - free).items():
                free += freed
                del known[name]
        if not free.fits():
            raise CapacityError(
                f"the snapshot of {use} does not fit into {store.path}, where all may take {limit}, and "
                f"{len(known)} others take {limit - use - free}: remove some with sandboxkit snapshots rm, "
                f"or set {LIMIT_VARIABLE if free.bytes < 0 else 'SANDBOXKIT_STATE_DIR to a folder elsewhere'}"
            )

    def _copied(
        self, init: int, places: list[str], target: Path, image: LocalImage | None
    ) -> DiskUse:
        """Copy a sandbox's folders, of an image only the changes; return the disk use of the copy."""
        args = _layout.system()[0] if image is None else ()
        fixed = made([*args, *_layout.folders_made(image=image is not None)])
        mounted = _mounted(init)
        points = map(Path, (*fixed, *mounted))
        links = {args[at + 2] for at, each in enumerate(args) if each == "--symlink"}
        with self.host.reading_files_of(init) as prefix:
            bytes_, inodes = copy_files(
                target,
                prefix,
                init=init,
                places=places,
                state=str(self._store().path.parent),
                skipped={*mounted.difference(places), *links, *_KEPT_OUT},
                folders={str(each) for path in points for each in (path, *path.parents)},
                owner=self.host.owner() if self.host.is_root else None,
                below=None if image is None else str(image.root),
            )
        return DiskUse(bytes_, inodes)

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        store = self._store()
        store.sweep()
        for snapshot_id, found in store.known().items():
            info = self._described(snapshot_id, found)
            if tags.items() <= info.tags.items():
                yield info

    async def mark_snapshot_used(self, snapshot_id: str) -> None:
        self._store().mark_used(snapshot_id)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        if SNAPSHOT_ID.fullmatch(snapshot_id):
            await anyio.to_thread.run_sync(self._delete, snapshot_id)

    def _delete(self, snapshot_id: str) -> None:
        store = self._store()
        lock = PathLock.take(store.path / snapshot_id)
        with lock or nullcontext():
            if lock is None and not (store.path / snapshot_id).exists():
                return
            living = _sweep.sweep(self.state, self._runs_here)
            users = [meta.id for meta in living if meta.snapshot == snapshot_id]
            if users or lock is None:
                raise SnapshotInUseError(
                    f"snapshot {snapshot_id!r} is in use by {', '.join(users) or 'a start'}: stop the "
                    "sandboxes that started from it"
                )
            store.discard(snapshot_id)

    @abstractmethod
    def _runs_here(self, sandbox_id: str) -> bool:
        """Return whether this provider started a sandbox, which still runs."""

    @contextmanager
    def _base_of(self, spec: SandboxSpec) -> Iterator[Base | None]:
        """Yield the base of a sandbox that is being started; it is not removed meanwhile.

        Raises SnapshotNotFoundError, and ConfigurationError if the spec does not fit it.
        """
        if spec.snapshot is None:
            yield None
            return
        store = self._store()
        lock = PathLock.take(store.path / spec.snapshot, fcntl.LOCK_SH)
        with lock or nullcontext():
            known = store.load(spec.snapshot)
            if lock is None:
                raise SnapshotNotFoundError(f"snapshot {spec.snapshot!r} is being removed")
            folders = known.folders
            if spec.image is not None and _image.absolute(spec.image) != known.image:
                raise ConfigurationError(
                    f"image={spec.image!r}: snapshot {spec.snapshot!r} was taken of a sandbox with "
                    f"image={known.image!r}; leave image= out"
                )
            profile = _profile(folders)
            if profile != spec.profile:
                raise ConfigurationError(
                    f"profile={spec.profile!r}: snapshot {spec.snapshot!r} was taken of a sandbox with "
                    f"profile={profile!r}; give that"
                )
            store.mark_used(spec.snapshot)
            yield Base(
                spec.snapshot,
                store.path / spec.snapshot / "root",
                store.path,
                tuple(folders),
                known.image,
                known.image_version,
            )

    async def _on_base(
        self, spec: SandboxSpec, base: Base | None
    ) -> tuple[SandboxSpec, LocalImage | None]:
        """Return a spec with the image of its snapshot, and that image."""
        if base is not None:
            spec = replace(spec, image=base.image)
            _spec.check_mounts(spec)
        image = None if spec.image is None else await _image.find(spec.image, self.host)
        if base is not None and image is not None:
            base.check_image(image)
        return spec, image

    def _described(self, snapshot_id: str, known: StoredSnapshot) -> SnapshotInfo:
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
            used_at=None if known.used is None else datetime.fromtimestamp(known.used, UTC),
        )


def _profile(folders: list[str]) -> Profile:
    return "standard" if folders == ["/"] else "strict"


def _mounted(init: int) -> set[str]:
    """Return the mount points that a sandbox's processes see, except the root."""
    with open(f"/proc/{init}/mountinfo") as file:
        points = {line.split()[4] for line in file}
    escaped = {
        point.encode().decode("unicode_escape") if "\\" in point else point for point in points
    }
    return escaped - {"/"}
