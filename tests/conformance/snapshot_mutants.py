"""Providers whose snapshots and pauses are wrong in one way each."""

import dataclasses
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from sandboxkit.testing.fake import FakeProvider, _Box
from sandboxkit.types import SandboxSpec, SnapshotInfo, SnapshotKind


class InheritsTheEnvironment(FakeProvider):
    """A sandbox gets the variables and secrets of the one whose snapshot it starts from."""

    def __init__(self) -> None:
        super().__init__()
        self._env: dict[str, Mapping[str, str]] = {}

    async def create(self, spec: SandboxSpec) -> str:
        inherited = self._env.get(spec.snapshot or "", {})
        return await super().create(dataclasses.replace(spec, env={**inherited, **spec.env}))

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        box = self._box(sandbox_id)
        info = await super().take_snapshot(
            sandbox_id, kind=kind, name=name, tags=tags, expires=expires
        )
        self._env[info.id] = {**box.spec.env, **box.spec.secrets}
        return info


class SharesWrites(FakeProvider):
    """Sandboxes of one snapshot have the same files, not copies of them."""

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-al", "--", f"{source}/.", str(target)], check=True)


class LosesDeletions(FakeProvider):
    """A snapshot has the files of its parent as well, those that were deleted included."""

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        parent = self._box(sandbox_id).spec.snapshot
        info = await super().take_snapshot(
            sandbox_id, kind=kind, name=name, tags=tags, expires=expires
        )
        if parent is not None:
            source, target = self._snapshots[parent][1], self._snapshots[info.id][1]
            subprocess.run(["cp", "-an", "--", f"{source}/.", str(target)], check=True)
        return info


class LosesLinksAndModes(FakeProvider):
    """A snapshot is a plain copy of the names and contents."""

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["cp", "-rP", "--", f"{source}/.", str(target)], check=True)


class KeepsOnRunning(FakeProvider):
    """Programs run on while a snapshot is taken."""

    async def _stop(self, box: _Box) -> None:
        """Stop nothing."""

    def _copy(self, source: Path, target: Path) -> None:
        # A file that a program deletes meanwhile makes `cp` fail, not this mutant.
        subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], check=False)
        late, copied = (folder / "workspace" / "b" for folder in (source, target))
        if late.exists() and any(box.folder == source for box in self._boxes.values()):
            end = time.monotonic() + 10
            while late.read_bytes() == copied.read_bytes() and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.3)
            copied.write_bytes(late.read_bytes())


class TakesAnyKind(FakeProvider):
    """A snapshot of files is given for one of memory."""

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """Refuse nothing."""


class DeletesWhatIsUsed(FakeProvider):
    """A snapshot is deleted while a sandbox runs from it."""

    async def delete_snapshot(self, snapshot_id: str) -> None:
        for box in self._boxes.values():
            box.spec = dataclasses.replace(box.spec, snapshot=None)
        await super().delete_snapshot(snapshot_id)


class IgnoresTheSnapshot(FakeProvider):
    """A sandbox starts without the files that were asked for."""

    async def create(self, spec: SandboxSpec) -> str:
        return await super().create(dataclasses.replace(spec, snapshot=None))


class KillsAtResume(FakeProvider):
    """The programs of a paused sandbox are gone after it is resumed."""

    async def resume(self, sandbox_id: str) -> None:
        await self._kill(f"box:{self._box(sandbox_id).folder}", None)
        await super().resume(sandbox_id)
