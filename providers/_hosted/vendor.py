"""The base of a vendor's provider: all that is the same for every vendor, and the hooks that a vendor supplies."""

import logging
import math
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import anyio
import anyio.lowlevel

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import FirstCommand, no_sandbox
from sandboxkit.providers import _rules
from sandboxkit.providers._agent.link import BROKEN
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.account import VendorAccount
from sandboxkit.providers._hosted.agent import HostedBox, HostedProvider
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.lifetime import LEASE, keep_renewed
from sandboxkit.providers._hosted.pipe import Endings
from sandboxkit.providers._hosted.records import (
    SNAPSHOT_TAG,
    AccountRecords,
    Baked,
    SnapshotRecord,
    is_of,
    is_snapshot,
    short,
    snapshot_name,
    snapshot_records,
)
from sandboxkit.types import (
    Diagnosis,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    SnapshotKind,
    SnapshotRequest,
)

_BAKING_SECONDS = 900.0
"""Lifetime in seconds of a sandbox from which an image is made."""
_log = logging.getLogger("sandboxkit.hosted")

ProviderT = TypeVar("ProviderT", bound="VendorProvider[Any, Any]")


class VendorBox(HostedBox, Generic[ProviderT]):
    """`HostedBox` of a vendor that makes images of sandboxes' files.

    A subclass has `ids`, and implements `info`, `_run` and the abstract methods below; `prepare` as well if a
    new sandbox has more to check, and `public_url` if it has public addresses.
    """

    _root_is_ours: ClassVar[bool] = True

    ids: ClassVar[re.Pattern[str]]
    """The ids of the vendor's sandboxes; `_existing_id` finds no other ones."""
    user: ClassVar[str | None] = None
    """The user of commands if neither the spec nor its profile sets one; None: the one of `_run`."""

    def __init__(self, provider: ProviderT, sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider
        self.endings = Endings()
        """The tasks that end its programs."""

    @abstractmethod
    async def _end(self) -> None:
        """End the sandbox at the vendor. Raises SandboxNotFoundError if it has ended."""

    @abstractmethod
    async def _set_lifetime(self, seconds: int) -> None:
        """Set the remaining lifetime. Raises SandboxNotFoundError."""

    @abstractmethod
    async def _keep_files(self, name: str, seconds: int | None) -> str:
        """Make an image of the files, without memory, and return its reference.

        A snapshot expires in `seconds`, and its reference contains `name`; None makes an image for `bake`.
        Raises SandboxError; an image of that name may exist even then.
        """

    async def prepare(self, spec: SandboxSpec, first: FirstCommand | None) -> None:
        """Start the agent in a new sandbox. Raises what `create` raises."""
        await self.begin(spec, first, user=self.user)
        if spec.lifetime is None:
            await self.set_timer(keep_renewed(self._set_lifetime))

    async def delete(self) -> None:
        async with self.deletion():
            with suppress(SandboxNotFoundError):
                await self._end()
            await self.endings.settle(cancel=True)

    async def aclose(self) -> None:
        await super().aclose()
        await self.endings.settle()

    async def renew(self, lifetime: float) -> None:
        seconds = self.backend.seconds(lifetime)
        await self.set_timer(None)
        await self._set_lifetime(seconds)

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        provider = self.backend
        provider.check_snapshot(SandboxSpec(), request.kind)
        parent = (await self.info()).tags.get(SNAPSHOT_TAG)
        if self.machine_seen is None:
            await self._client()
        own = snapshot_name(self.machine_seen or "", request.expires)
        made = ""
        try:
            # Shielded: the vendor would finish a cancelled snapshot.
            with anyio.CancelScope(shield=True):
                seconds = math.ceil(request.expires) - int(time.time())
                made = await self._keep_files(own, seconds)
            await anyio.lowlevel.checkpoint_if_cancelled()
            record = SnapshotRecord(made, parent, request.name, dict(request.tags))
            info = record.info(provider.name)
            if info is None:
                raise ConfigurationError(
                    f"{provider.name} called the snapshot {made!r}, not {own!r}: the server is not one of "
                    "its vendor's, or too old"
                )
            provider.records().keep(made, record)
            return info
        except BaseException:
            # If this fails too, the snapshot expires by its name.
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                if left := made or await provider.snapshot_there(own, None):
                    await provider.remove_snapshot(left)
                    provider.records().forget(left)
            raise

    async def put_agent(self) -> None:
        """Store the agent in the sandbox's files."""
        assumed = install.LIKELY
        while True:
            stream = await self._run(install.command("", "put", assumed=assumed))
            found = install.Found(stream, install.data_of(assumed))
            try:
                await found.send(b"")
                await found.read_preamble()
                return
            except install.WantsError as error:
                assumed = error.arch
            except install.NoAgentError as error:
                raise SandboxStartError(
                    f"the agent cannot be stored in sandbox {self.id!r}: {error}"
                ) from error
            except BROKEN as error:
                raise self._broke() from error
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()

    def _existing_id(self) -> str:
        """Return the id, for a vendor call. Raises SandboxNotFoundError if no sandbox can have it."""
        if not self.ids.fullmatch(self.id):
            raise no_sandbox(self.id)
        return self.id

    def _check_restarted(self, snapshot_id: str) -> None:
        """Raise ConfigurationError if the sandbox runs on from the memory of the one it was taken of.

        A server that does not know snapshots without memory makes them with it.
        """
        if is_of(snapshot_id, self.machine_seen or ""):
            raise ConfigurationError(
                f"snapshot {snapshot_id!r} has memory and processes, although files alone were asked for: "
                f"the server that stands for {self.provider.name} cannot do that; set the sandbox up anew"
            )


VendorBoxT = TypeVar("VendorBoxT", bound=VendorBox[Any])
AccountT = TypeVar("AccountT", bound=VendorAccount)


class VendorProvider(HostedProvider[VendorBoxT], Generic[VendorBoxT, AccountT]):
    """`HostedProvider` of a vendor that makes images of sandboxes' files.

    A subclass has the class variables below, and implements the abstract methods. A snapshot's id holds the times
    of its creation and expiry, so that every process that uses the account finds what has expired, if the vendor
    lists its snapshots. Name, tags and parent are recorded in the user's state folder.
    """

    rules: ClassVar[tuple[_rules.Rule, ...]]
    """The rules for options that the vendor cannot honour."""
    longest: ClassVar[int]
    """The longest lifetime (s) that the vendor gives a sandbox."""
    marks: ClassVar[Mapping[str, str]] = {}
    """The tags by which this provider knows its sandboxes among others of the account."""
    isolation: ClassVar[str]
    """How the vendor isolates sandboxes, for the doctor."""
    default_image: ClassVar[str] = ""
    """The image of a sandbox whose spec names none."""

    # Any: the class of a box takes its provider's own type.
    def __init__(self, account: AccountT) -> None:
        super().__init__()
        self.account = account
        self._creations = Creations(provider=self.name)
        self._reported: set[str] = set()
        """Baked images with another version's agent that have already been logged."""

    @abstractmethod
    async def _create(self, spec: SandboxSpec, key: str) -> VendorBoxT:
        """Make a sandbox without an agent, which `_created` finds by `key`, within a deadline of its own.

        Raises what `create` raises, AmbiguousError if the sandbox may exist.
        """

    @abstractmethod
    async def _created(self, key: str) -> Sequence[VendorBoxT]:
        """Return the sandboxes that were made with `key`."""

    @abstractmethod
    def _listed(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Iterate over the sandboxes that carry all of `tags`; others are ignored."""

    @abstractmethod
    async def _reached(self) -> tuple[str, str]:
        """Call the vendor, and return how it isolates sandboxes and a text with its address."""

    @abstractmethod
    async def snapshot_there(self, name: str, reference: str | None) -> str | None:
        """Return an existing image's reference, or None; looks it up by `reference` if the vendor's
        images have no names, else by `name`."""

    @abstractmethod
    async def remove_snapshot(self, reference: str) -> None:
        """Remove an image. A missing image is no error."""

    @abstractmethod
    def _snapshot_ids(self) -> AsyncIterator[str]:
        """Iterate over the ids of the account's snapshots; ids of others' are ignored."""

    def _image_of(self, spec: SandboxSpec) -> str:
        return spec.image or self.default_image

    def _may_bake(self, spec: SandboxSpec) -> bool:
        """Return whether a sandbox from a baked image can honour the whole spec."""
        return spec.snapshot is None

    def check(self, spec: SandboxSpec) -> None:
        self.account.check()
        self.check_options(spec)

    def check_options(self, spec: SandboxSpec) -> None:
        """Raise ConfigurationError for an option that the vendor cannot honour."""
        why = "it ends every sandbox after that many seconds"
        rules = (*self.rules, _rules.at_most("lifetime", self.longest, why))
        _rules.check(spec, rules, provider=self.name)

    def seconds(self, lifetime: float | None) -> int:
        """Round a lifetime (s) up to whole seconds; None gives one lease.

        Raises ConfigurationError if it is longer than the vendor's sandboxes live.
        """
        if lifetime is None:
            return LEASE
        if lifetime > self.longest:
            raise ConfigurationError(
                f"lifetime={lifetime!r}: {self.name} ends sandboxes after {self.longest} s at the latest; "
                f"use a lifetime up to {self.longest}"
            )
        return math.ceil(lifetime)

    def tags_of(self, spec: SandboxSpec) -> dict[str, str]:
        """Return the tags to store with a sandbox: the spec's, its snapshot and this provider's marks."""
        snapshot = {} if spec.snapshot is None else {SNAPSHOT_TAG: spec.snapshot}
        return {**spec.tags, **snapshot, **self.marks}

    def check_stored(self, spec: SandboxSpec, allowed: Iterable[str]) -> None:
        """Raise ConfigurationError if the vendor lets a sandbox reach more than `native_rules`."""
        names, networks = spec.native_rules or ((), ())
        if not set(allowed) <= {*names, *networks}:
            raise ConfigurationError(
                f"{self.name} did not store the list of Egress(native=True), which this server may be too old "
                "for: leave native=True out"
            )

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> VendorBoxT:
        self.check(spec)
        baked = self._baked().find(self._image_of(spec)) if self._may_bake(spec) else None
        if baked is not None and not baked.current:
            level = logging.DEBUG if baked.reference in self._reported else logging.WARNING
            self._reported.add(baked.reference)
            _log.log(
                level,
                "the baked image of %r at %s has the agent of another version and is not used; renew it "
                "with `sandboxkit bake -p %s`",
                baked.image,
                self.name,
                self.name,
            )
        elif baked is not None:
            self.assumed_agents.setdefault(baked.reference, install.PRESENT)
            try:
                return await self._make(replace(spec, image=baked.reference), first)
            except ImageNotFoundError:
                self._forget_baked(baked)  # the image was removed by other means
        return await self._make(spec, first)

    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> VendorBoxT:
        """Make a sandbox from the spec's image or snapshot, with a running agent. Raises what `create` raises."""
        if spec.snapshot is not None and not is_snapshot(spec.snapshot):
            raise self._missing(spec.snapshot)
        try:
            box = await self._bare(spec)
            async with self._creations.preparing(box):
                await box.prepare(spec, first)
            return box
        except ImageNotFoundError as error:
            if spec.snapshot is None:
                raise
            raise self._missing(spec.snapshot, f": {error}") from error

    async def _bare(self, spec: SandboxSpec) -> VendorBoxT:
        """Make a sandbox without an agent. Raises what `create` raises."""
        key = f"sandboxkit-{secrets.token_hex(16)}"
        return await self._creations.once(
            lambda: self._create(spec, key),
            lambda: self._created(key),
            left=f"a sandbox with the key {key!r}",
        )

    def _missing(self, snapshot_id: str, said: str = "") -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} in the account at {self.name}; it was deleted, or has expired "
            f"and was removed{said}"
        )

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = {**tags, **self.marks}
        async for info in self._listed(wanted):
            if wanted.items() <= info.tags.items():
                yield info

    async def diagnose(self) -> Diagnosis:
        try:
            self.account.check()
            isolation, detail = await self._reached()
        except SandboxError as error:
            return Diagnosis(False, self.isolation, f"no access to {self.name}", str(error))
        return Diagnosis(True, isolation, detail)

    async def aclose(self) -> None:
        try:
            await self._creations.settle()
        finally:
            await super().aclose()
            await self.account.aclose()

    # Snapshots of sandboxes.

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a snapshot on {self.name} keeps files alone; use kind='files'"
            )

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        records = self.records()
        unseen = records.paths()  # each had its snapshot before
        async for snapshot_id in self._snapshot_ids():
            info = (records.find(snapshot_id) or SnapshotRecord(snapshot_id)).info(self.name)
            if info is None:
                continue
            unseen.discard(records.path(snapshot_id))
            if tags.items() <= info.tags.items():
                yield info
        for path in unseen:  # removed by another machine
            path.unlink(missing_ok=True)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        if not is_snapshot(snapshot_id):
            return
        users = [info.id async for info in self.list({SNAPSHOT_TAG: snapshot_id})]
        if users:
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use by {', '.join(users[:5])}"
                f"{' and others' if users[5:] else ''}: stop the sandboxes that started from it"
            )
        await self.remove_snapshot(snapshot_id)
        self.records().forget(snapshot_id)

    def records(self) -> AccountRecords[SnapshotRecord]:
        """Return the records of the account's snapshots on this machine."""
        return snapshot_records(f"{self.name}-{short(self.account.identity(), 8)}-")

    # Images with the agent, which starts need not upload.

    async def bake(self, image: str | None, *, renew: bool = False) -> Baked:
        """Build the agent into `image`, or into the default image; later starts use the result.

        Without `renew`, an existing baked image is returned. One of another sandboxkit version is removed.
        Raises what `create` raises.
        """
        spec = SandboxSpec(image=image, lifetime=_BAKING_SECONDS)
        self.check(spec)
        made_of, images = self._image_of(spec), self._baked()
        name = f"sandboxkit-{short(made_of, 8)}-{install.version()}"
        before = images.find(made_of)
        known = before.reference if before is not None and before.current else None
        reference = await self.snapshot_there(name, known)
        if reference is not None and renew:
            await self.remove_snapshot(reference)
            reference = None
        baked = Baked(made_of, reference or "", install.version())
        if reference is None:
            baked = await self._newly_baked(spec, name, baked)
        images.keep(made_of, baked)
        if before is not None and before.reference != baked.reference:
            await self.remove_snapshot(before.reference)
        return baked

    async def _newly_baked(self, spec: SandboxSpec, name: str, baked: Baked) -> Baked:
        box = await self._bare(spec)
        async with self._creations.preparing(box):
            await box.put_agent()
            # Shielded, because the vendor would finish a cancelled snapshot, which nothing would record.
            with anyio.CancelScope(shield=True):
                baked = replace(baked, reference=await box._keep_files(name, None))
                self._baked().keep(baked.image, baked)
            # Within the context, which deletes the sandbox again if this fails or is cancelled.
            await box.delete()
        return baked

    async def baked(self) -> Sequence[Baked]:
        """Return the images that `bake` made, as recorded in this user's state folder."""
        return [*self._baked()]

    async def unbake(self, baked: Baked) -> None:
        """Remove an image that `bake` made. A missing image is no error."""
        await self.remove_snapshot(baked.reference)
        self._forget_baked(baked)

    def _baked(self) -> AccountRecords[Baked]:
        prefix = f"{self.name}-{short(self.account.identity(), 16)}-"
        return AccountRecords("baked", Baked, prefix, partial(short, digits=16))

    def _forget_baked(self, baked: Baked) -> None:
        """Delete the record, unless a newer one for the same image has replaced it."""
        if self._baked().find(baked.image) == baked:
            self._baked().forget(baked.image)
