"""Snapshots at vendors: the id holds its times, this machine the name, the tags and the parent."""

import math
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import anyio.lowlevel

from sandboxkit.errors import (
    ConfigurationError,
    SandboxError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.providers._hosted.agent import HostedInstanceT
from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.providers._hosted.records import AccountRecords, short
from sandboxkit.types import SandboxSpec, SnapshotInfo, SnapshotKind

SNAPSHOT_TAG = "sandboxkit.snapshot"
"""The tag of a sandbox that names the snapshot from which it started."""

SNAPSHOT_NAME = "sandboxkit-snapshot"
"""The beginning of the names of snapshots."""
_ID = re.compile(
    rf"(?:[\w.-]+/)?{SNAPSHOT_NAME}-[0-9a-f]{{16}}-([0-9a-f]{{8,10}})-([0-9a-f]{{8,10}})-([0-9a-f]{{8}})(?::[\w.-]+)?",
    re.ASCII,
)
"""A vendor may add its account before the name, and a version or its own id behind it."""


class SnapshotProvider(BakingProvider[HostedInstanceT]):
    """`BakingProvider` whose vendor makes snapshots of files.

    The id holds the times of creation and expiry, so that every process that uses the account finds
    what has expired, if the vendor lists its snapshots. Name, tags and parent are recorded in the user's
    state folder.
    """

    @abstractmethod
    async def _keep_files(self, sandbox_id: str, name: str, seconds: int) -> str:
        """Make a snapshot without memory; return its id, which contains `name`. Raises SandboxError.

        It expires in `seconds`.
        """

    @abstractmethod
    def _snapshot_ids(self) -> AsyncIterator[str]:
        """Iterate over the ids of the account's snapshots; ids of others' are ignored."""

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a snapshot on {self.name} keeps files alone; use kind='files'"
            )

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        self.check_snapshot(SandboxSpec(), kind)
        parent = (await self.get(sandbox_id)).tags.get(SNAPSHOT_TAG)
        machine = short(await self._machine_of(sandbox_id), 8)
        now = int(time.time())
        times = f"{now:08x}-{math.ceil(expires):08x}"
        own = f"{SNAPSHOT_NAME}-{secrets.token_hex(8)}-{times}-{machine}"
        made = ""
        try:
            # Shielded: the vendor would finish a cancelled snapshot.
            with anyio.CancelScope(shield=True):
                made = await self._keep_files(sandbox_id, own, math.ceil(expires) - now)
            await anyio.lowlevel.checkpoint_if_cancelled()
            record = _Record(made, parent, name, dict(tags))
            info = _info(self.name, made, record)
            if info is None:
                raise ConfigurationError(
                    f"{self.name} called the snapshot {made!r}, not {own!r}: the server is not one of "
                    "its vendor's, or too old"
                )
            self._records().keep(made, record)
            return info
        except BaseException:
            # If this fails too, the snapshot expires by its name.
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                if left := made or await self._snapshot_there(own, None):
                    await self._remove_snapshot(left)
                    self._records().forget(left)
            raise

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        records = self._records()
        unseen = records.paths()  # each had its snapshot before
        async for snapshot_id in self._snapshot_ids():
            info = _info(self.name, snapshot_id, records.find(snapshot_id) or _Record(snapshot_id))
            if info is None:
                continue
            unseen.discard(records.path(snapshot_id))
            if tags.items() <= info.tags.items():
                yield info
        for path in unseen:  # removed by another machine
            path.unlink(missing_ok=True)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        if _ID.fullmatch(snapshot_id) is None:
            return
        users = [info.id async for info in self.list({SNAPSHOT_TAG: snapshot_id})]
        if users:
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use by {', '.join(users[:5])}"
                f"{' and others' if users[5:] else ''}: stop the sandboxes that started from it"
            )
        await self._remove_snapshot(snapshot_id)
        self._records().forget(snapshot_id)

    def _may_bake(self, spec: SandboxSpec) -> bool:
        return spec.snapshot is None and super()._may_bake(spec)

    def _check_snapshot_id(self, spec: SandboxSpec) -> None:
        """Raise SnapshotNotFoundError if no snapshot of ours can have the id of the spec's."""
        if spec.snapshot is not None and _ID.fullmatch(spec.snapshot) is None:
            raise self._missing(spec.snapshot)

    def _missing(self, snapshot_id: str) -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} in the account at {self.name}; it was deleted, or has expired "
            "and was removed"
        )

    def _check_restarted(self, sandbox_id: str, snapshot_id: str) -> None:
        """Raise ConfigurationError if a sandbox runs on from the memory of the one it was taken of.

        A server that does not know snapshots without memory makes them with it.
        """
        match = _ID.fullmatch(snapshot_id)
        if match is not None and match[3] == short(self._known(sandbox_id).machine_seen or "", 8):
            raise ConfigurationError(
                f"snapshot {snapshot_id!r} has memory and processes, although files alone were asked for: "
                f"the server that stands for {self.name} cannot do that; set the sandbox up anew"
            )

    async def _machine_of(self, sandbox_id: str) -> str:
        """Return what identifies this run of a sandbox; connects to its agent if nothing has before."""
        if self._known(sandbox_id).machine_seen is None:
            await self._client(sandbox_id)
        return self._known(sandbox_id).machine_seen or ""

    def _records(self) -> "AccountRecords[_Record]":
        prefix = f"{self.name}-{short(self._account_name(), 8)}-"
        return AccountRecords("snapshot-records", _Record, prefix, _file_name)


@dataclass(frozen=True, slots=True)
class _Record:
    """The fields of a snapshot that no vendor stores."""

    id: str
    parent: str | None = None
    name: str | None = None
    tags: Mapping[str, str] | None = None


def _file_name(snapshot_id: str) -> str:
    match = _ID.fullmatch(snapshot_id)
    return snapshot_id.rpartition("/")[2].partition(":")[0] if match else short(snapshot_id, 8)


def _info(provider: str, snapshot_id: str, record: _Record) -> SnapshotInfo | None:
    """Describe a snapshot; None for one that is not ours."""
    match = _ID.fullmatch(snapshot_id)
    if match is None:
        return None
    created, expires = (datetime.fromtimestamp(int(match[n], 16), UTC) for n in (1, 2))
    return SnapshotInfo(
        id=snapshot_id,
        provider=provider,
        kind="files",
        bytes=None,
        created_at=created,
        expires_at=expires,
        parent=record.parent,
        name=record.name,
        tags=record.tags or {},
    )
