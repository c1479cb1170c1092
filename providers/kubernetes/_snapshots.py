"""Snapshots of pods: what has changed in a container, as an archive that this machine or a registry keeps."""

import errno
import hashlib
import math
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread

from sandboxkit.errors import (
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxStartError,
    SnapshotInUseError,
)
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.box import AgentBox, AgentProvider, BoxT
from sandboxkit.providers._hosted.records import SNAPSHOT_TAG
from sandboxkit.providers.kubernetes import _pod, _tags
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._parts import LOADER
from sandboxkit.providers.kubernetes._registry import (
    DeletionRefusedError,
    ImageLayer,
    ImageRegistry,
    ImageRepository,
    digest_of,
)
from sandboxkit.providers.kubernetes._snapshot_image import STAGED, SnapshotImage, key_of
from sandboxkit.providers.kubernetes._snapshot_store import ArchiveStore, KeptFiles
from sandboxkit.types import SandboxSpec, SandboxState, SnapshotInfo, SnapshotKind, SnapshotRequest

_MOST = 4 << 30
"""The size (bytes) of the largest archive, compressed."""
_PIECE = 1 << 20
_MARK = re.compile(rb"SBXKEPT ([0-9a-f]{16})\n")
"""The last output of `keep`: the archive before it is whole, and its files have this size (bytes)."""
_MARK_BYTES = 25
_RESTORED = b"restored\n"
"""The output of a `restore` that succeeds."""


class PodSnapshots(AgentProvider[BoxT]):
    """The part of the kubernetes provider that has to do with snapshots.

    Two of the agent's programs, which the API server starts beside the agent, write and unpack an archive
    (`agent/keep.go`). The sandbox's own programs cannot be used for that: the user may have replaced them,
    and what the API server starts has rights that commands lack.
    """

    api: Api
    options: ClusterOptions
    timeout: float
    start_timeout: float

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if self.options.claims is not None:
            raise ConfigurationError(
                f"there are no snapshots with claims={self.options.claims!r}: the template of the warm pool "
                "decides what a pod starts with; build an image"
            )
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a snapshot on kubernetes keeps files alone; use kind='files'"
            )

    async def take_snapshot_of(
        self, box: AgentBox, pod: Mapping[str, Any], request: SnapshotRequest
    ) -> SnapshotInfo:
        """Keep the files of a sandbox that is a pod; see `Box.take_snapshot`."""
        self.check_snapshot(SandboxSpec(), request.kind)
        store = ArchiveStore()
        info, places = _pod.info_of(pod), _pod.places_of(pod)
        since = _pod.started_at(pod)
        argv = (LOADER, "keep", str(since.timestamp() if since else math.inf), *places)
        with _full_disk(box.id, store), store.partial(box.id) as file:
            async with _standing_still(box):
                content, unpacked = await self._archived(box, argv, file)
            kept = KeptFiles(
                id=store.new_id(),
                content=content,
                bytes=file.tell(),
                unpacked=unpacked,
                created=time.time(),
                expires=request.expires,
                parent=info.tags.get(SNAPSHOT_TAG) if info else None,
                name=request.name,
                tags=dict(request.tags),
                image=str(pod["spec"]["containers"][0]["image"]),
                places=places,
            )
            async with pushed(
                kept,
                Path(str(file.name)),
                self.options,
                answer=self.timeout,
                seconds=self.start_timeout,
            ) as kept:
                await anyio.to_thread.run_sync(store.keep, file, kept)
        return kept.info

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        for info in await anyio.to_thread.run_sync(ArchiveStore().all):
            if tags.items() <= info.tags.items():
                yield info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        users = [
            info.id
            async for info in self.list({SNAPSHOT_TAG: snapshot_id})
            if info.state is not SandboxState.STOPPED
        ]
        if users:
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use by {', '.join(users[:5])}"
                f"{' and others' if users[5:] else ''}: stop the sandboxes that started from it"
            )
        store = ArchiveStore()
        refused: DeletionRefusedError | None = None
        kept = await anyio.to_thread.run_sync(store.find, snapshot_id)
        if kept is not None:
            try:
                await unpush(kept, answer=self.timeout)
            except DeletionRefusedError as error:
                refused = error
        await anyio.to_thread.run_sync(store.remove, snapshot_id)
        if refused is not None:  # no later attempt could do more, so the archive does not stay
            raise refused

    def _snapshot_image(self, spec: SandboxSpec) -> SnapshotImage | None:
        """Return the image of the spec's snapshot, if the pod gets the snapshot in one."""
        return image_of(ArchiveStore().load(spec.snapshot), self.options) if spec.snapshot else None

    def _based(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with the image and the tag of its snapshot, if it has one.

        Raises SnapshotNotFoundError, and ConfigurationError if the spec does not fit the snapshot.
        """
        if spec.snapshot is None:
            return spec
        kept, places = ArchiveStore().load(spec.snapshot), _pod.places(spec, self.options)
        if spec.image not in (None, kept.image):
            raise ConfigurationError(
                f"image={spec.image!r}: snapshot {kept.id!r} was taken of a sandbox with the image "
                f"{kept.image!r}; leave image= out"
            )
        if places != kept.places:
            raise ConfigurationError(
                f"profile={spec.profile!r} and workdir={spec.workdir!r}: snapshot {kept.id!r} has files of "
                f"{', '.join(kept.places)}, and this sandbox could write to {', '.join(places)}; give the "
                "profile and workdir of its sandbox, and the same security="
            )
        most = _pod.disk_mb(spec)
        if kept.unpacked > most << 20:
            raise ConfigurationError(
                f"disk_mb={most}: snapshot {kept.id!r} has {kept.unpacked} bytes; give the sandbox more"
            )
        return replace(spec, image=kept.image, tags={**spec.tags, SNAPSHOT_TAG: kept.id})

    # Any: a manifest is JSON.
    async def _restored(self, box: AgentBox, spec: SandboxSpec, pod: Mapping[str, Any]) -> None:
        """Unpack the files of the spec's snapshot, if it has one, in a sandbox that nobody uses yet.

        They are in the image that the pod's manifest names, or else sent.
        """
        if spec.snapshot is None:
            return
        store = ArchiveStore()
        kept, workdir = store.load(spec.snapshot), await box.workdir()
        places = (workdir, *_pod.places(spec, self.options))
        what = f"the files of snapshot {kept.id!r} were not restored"
        if key := key_of(pod):
            sent = BytesIO(f"{key}\n".encode())
            await self._unpack(box, what, (LOADER, "unstage", STAGED, *places), sent)
            return
        with store.open(kept) as file:
            if await anyio.to_thread.run_sync(_digest, file) != kept.content:
                raise SandboxStartError(f"{what}: the archive {file.name} is damaged")
            await self._unpack(box, what, (LOADER, "restore", *places), file)

    async def _unpack(self, box: AgentBox, what: str, argv: Sequence[str], file: BinaryIO) -> None:
        """Run a program that unpacks an archive, with `file` as its input."""
        said = b""
        stream = await self.api.exec(box.id, _pod.CONTAINER, argv, sandbox_id=box.id)

        async def send() -> None:
            try:
                while data := await anyio.to_thread.run_sync(file.read, _PIECE):
                    await stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # what the program said tells why

        try:
            with anyio.move_on_after(self.start_timeout):
                async with anyio.create_task_group() as group:
                    group.start_soon(send)
                    async for data in _output(stream):
                        said += data
                        if said.endswith(b"\n"):
                            break
                    group.cancel_scope.cancel()
        finally:
            await stream.aclose()
        if said != _RESTORED:
            text = said.decode(errors="replace").strip() or stream.diagnostics
            raise self._failed(text, what, SandboxStartError)

    async def _archived(self, box: AgentBox, argv: Sequence[str], file: FileIO) -> tuple[str, int]:
        """Write the archive that a program prints to a file; return its digest and unpacked size (bytes)."""
        what = f"the files of sandbox {box.id!r} were not kept"
        digest, size, piece, last = hashlib.sha256(), 0, bytearray(), b""

        def write() -> None:
            left = bytes(piece)
            digest.update(left)
            piece.clear()
            while left:
                left = left[file.write(left) :]

        stream = await self.api.exec(box.id, _pod.CONTAINER, argv, sandbox_id=box.id)
        try:
            with anyio.move_on_after(self.start_timeout) as limit:
                async for data in _output(stream):
                    piece += data
                    size += len(data)
                    last = (last + data)[-_MARK_BYTES:]
                    if size > _MOST:
                        raise CapacityError(
                            f"{what}: compressed they have more than {_MOST} bytes, the most that a snapshot "
                            "on kubernetes keeps; remove what is not needed, or build an image"
                        )
                    if len(piece) >= _PIECE:
                        await anyio.to_thread.run_sync(write)
            await anyio.to_thread.run_sync(write)
        finally:
            await stream.aclose()
        mark = _MARK.fullmatch(last)
        if mark is None or stream.diagnostics or limit.cancelled_caught:
            raise self._failed(stream.diagnostics, what, ConfigurationError)
        return digest.hexdigest(), int(mark[1], 16)

    def _failed(self, said: str, what: str, kind: type[SandboxError]) -> SandboxError:
        if "no space left" in said:
            kind = CapacityError
        elif "sandbox agent:" not in said:
            kind = ProviderUnavailableError
            said = said or f"it took longer than start_timeout={self.start_timeout:g}"
        return kind(f"{what}: {said}")


@asynccontextmanager
async def _standing_still(box: AgentBox) -> AsyncIterator[None]:
    """Stop the sandbox's commands for the duration of the block, or until this process ends."""
    async with box.call() as client:
        try:
            await requests.pause(client, True, while_connected=True)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await requests.pause(client, False)


@contextmanager
def _full_disk(sandbox_id: str, store: ArchiveStore) -> Iterator[None]:
    """Raise CapacityError with the figures if the block finds the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        disk = shutil.disk_usage(store.path)
        raise CapacityError(
            f"a snapshot of sandbox {sandbox_id!r} does not fit into {store.path}, whose disk has "
            f"{disk.free} of {disk.total} bytes free; free space there with sandboxkit cleanup --snapshots, or "
            "set SANDBOXKIT_STATE_DIR to a folder on a larger disk"
        ) from error


def _digest(file: BufferedReader) -> str:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return digest


async def _output(stream: PodExecStream) -> AsyncIterator[bytes]:
    """Yield what a program prints until it ends, or its connection breaks."""
    while True:
        try:
            data = await stream.receive(_PIECE)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
        yield data


@asynccontextmanager
async def pushed(
    kept: KeptFiles, archive: Path, options: ClusterOptions, *, answer: float, seconds: float
) -> AsyncIterator[KeptFiles]:
    """Push an archive if a registry is configured, and yield the record with its image.

    Every snapshot has a manifest of its own, so that its deletion leaves others of the same content. An error
    of the block removes the manifest. The layer may take `seconds`, each response `answer` seconds.
    """
    repository = options.snapshot_registry
    if repository is None:
        yield kept
        return
    async with ImageRegistry(ImageRepository.parse(repository), timeout=answer) as registry:
        with archive.open("rb") as file:
            try:
                with anyio.fail_after(seconds):
                    manifest = await registry.push_blobs(
                        ImageLayer(file, kept.bytes),
                        options.architecture,
                        {
                            f"{_tags.PREFIX}snapshot": kept.id,
                            f"{_tags.PREFIX}expires": f"{kept.expires:.0f}",
                        },
                    )
            except TimeoutError as error:
                raise ProviderUnavailableError(
                    f"the snapshot was not stored in {repository} within start_timeout={seconds:g} s"
                ) from error
        digest = digest_of(manifest)
        try:
            await registry.push(manifest, kept.id)
            yield replace(kept, pushed=f"{repository}@{digest}")
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                try:
                    await registry.remove(digest)
                except SandboxError as left:
                    error.add_note(f"{repository}:{kept.id} may be left behind: {left}")
            raise


async def unpush(kept: KeptFiles, *, answer: float) -> None:
    """Remove a snapshot's image from its registry, if it has one. Raises what `ImageRegistry.remove` does."""
    if kept.pushed is not None:
        repository, _, digest = kept.pushed.rpartition("@")
        async with ImageRegistry(ImageRepository.parse(repository), timeout=answer) as registry:
            await registry.remove(digest)


def image_of(kept: KeptFiles, options: ClusterOptions) -> SnapshotImage | None:
    """Return the image from which a new pod gets a snapshot; None if the client has to send the archive."""
    repository, _, digest = (kept.pushed or "").rpartition("@")
    if repository != options.snapshot_registry:
        return None
    return SnapshotImage(ImageRepository.parse(repository).image(digest), kept.bytes)
