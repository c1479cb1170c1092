"""Local sandboxes whose mounts are wrong in one way each."""

import builtins
import functools
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import anyio

from sandboxkit import Volume
from sandboxkit.provider import DatasetStore, FirstCommand
from sandboxkit.providers.local import LocalProvider, _layout
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.types import SandboxSpec
from tests.conformance.changed import making
from tests.conformance.weakened import private_folder


class RewritesMounts(LocalProvider):
    """A provider that gives bubblewrap another mount for each dataset."""

    def __init__(self) -> None:
        super().__init__()
        self._patching = anyio.Lock()

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        # A pool makes several sandboxes at once, and patches have to end in reverse order.
        async with self._patching:
            laid_out = _layout.layout

            def layout(*args: Any, **named: Any) -> _layout.Layout:  # Any: they are passed on
                root = laid_out(*args, **named)
                self.rewrite(root)
                return root

            with mock.patch.object(_layout, "layout", layout):
                return await super().create(spec, first)

    def rewrite(self, root: _layout.Layout) -> None:
        """Change the mounts of a sandbox's root."""
        given, root.args = root.args, []
        while given:
            option, *rest = given
            if option == "--ro-bind" and str(DatasetStore().path) in rest[0]:
                self.mount(root, Path(rest[0]), rest[1])
                given = rest[2:]
            else:
                root.args.append(option)
                given = rest

    def mount(self, root: _layout.Layout, source: Path, target: str) -> None:
        """Mount the stored dataset `source` at `target`."""
        root.bind(str(source), target)


def mounting(
    copied: Callable[[Path, str], Path], *, writable: bool = False
) -> type[RewritesMounts]:
    """A provider that mounts another folder than a stored dataset at a mount point."""

    class Mounting(RewritesMounts):
        def mount(self, root: _layout.Layout, source: Path, target: str) -> None:
            folder = copied(source, target)
            if not writable:
                super().mount(root, folder, target)
                return
            root.args += ["--bind", str(folder), target]
            root.sources.append(str(folder))

    return Mounting


def _copy(source: Path, *, writable: bool) -> Path:
    folder = private_folder() / "copy"
    shutil.copytree(source, folder, symlinks=writable)
    for path in (folder, *folder.rglob("*")) if writable else ():
        if not path.is_symlink():
            path.chmod(0o777)
    return folder


@functools.cache
def _one_copy(source: Path, _: str) -> Path:
    return _copy(source, writable=True)


def _half(source: Path, _: str) -> Path:
    copy = private_folder() / "copy"
    shutil.copytree(source, copy, symlinks=True)
    largest = max(copy.iterdir(), key=lambda path: path.lstat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    return copy


_FIRST: dict[str, Path] = {}

MountsWritable = mounting(lambda source, _: _copy(source, writable=True), writable=True)
"""Each sandbox can write to a copy of its own."""
SharesWrites = mounting(_one_copy, writable=True)
"""All sandboxes write to one copy."""
MountsAnotherDigest = mounting(lambda source, target: _FIRST.setdefault(target, source))
"""A mount point shows the first dataset that was mounted there."""
MountsHalfFilled = mounting(_half)
"""A dataset is mounted while it is filled."""
FollowsLinks = mounting(lambda source, _: _copy(source, writable=False))
"""A mount has copies of files in the place of links."""


class ShowsTheStore(RewritesMounts):
    """A dataset is also at its path in the store, which tells where the store is."""

    def mount(self, root: _layout.Layout, source: Path, target: str) -> None:
        super().mount(root, source, target)
        root.bind(str(source))


class MountsTheWorkdirReadOnly(RewritesMounts):
    """A sandbox with a mount is read-only as a whole."""

    def rewrite(self, root: _layout.Layout) -> None:
        super().rewrite(root)
        root.after += ["--remount-ro", "/"]


def _mounted_once(spec: SandboxSpec) -> SandboxSpec:
    points = {digest: point for point, digest in spec.mounts.items()}
    return replace(spec, mounts={point: digest for digest, point in points.items()})


def _with_volume(spec: SandboxSpec, volume: Volume) -> SandboxSpec:
    return replace(spec, mounts=dict.fromkeys(spec.mounts, volume.source))


MountsOnce = making(_mounted_once, RewritesMounts)
"""A dataset is mounted at the last of its mount points only."""
IgnoresMounts = making(lambda spec: replace(spec, mounts={}), LocalProvider)
"""A sandbox has no mounts, although it was asked for them."""
ForgetsVolumes = making(
    lambda spec: _with_volume(spec, Volume(secrets.token_hex(8))), LocalProvider
)
"""Each sandbox has a new volume."""
HasOneVolume = making(lambda spec: _with_volume(spec, Volume("one")), LocalProvider)
"""All volumes are the same."""


class RemovesMountedDatasets(LocalProvider):
    """The removal of unused datasets removes all of them."""

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        store = DatasetStore().path
        stored = [path for path in store.iterdir() if path.is_dir()]
        for path in () if dry_run else stored:
            shutil.rmtree(path)
        return [f"sha256:{path.name}" for path in stored]


class GivesVolumesToTheirMaker(LocalProvider):
    """Only the user who made something in a volume may change it, and each sandbox has another user."""

    def __init__(self) -> None:
        super().__init__()
        patched = mock.patch.object(
            self.host,
            "owning",
            lambda _, folders, sources, prepare: os.dup(self.host._namespace(sources)),
        )
        patched.start()


class RemovesUsedVolumes(LocalProvider):
    """The removal of a volume does not look whether a sandbox mounts it."""

    async def remove_volume(self, name: str) -> None:
        self._volumes.remove(name, list)


class KeepsRemovedVolumes(LocalProvider):
    """A volume that was removed is not listed, but its content is there when it is made again."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: set[str] = set()

    async def list_volumes(self) -> builtins.list[str]:
        return [name for name in await super().list_volumes() if name not in self._removed]

    async def remove_volume(self, name: str) -> None:
        self._removed.add(name)
