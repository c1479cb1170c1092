"""Builds the agent into images of a hosted provider, so that a start need not upload it."""

import logging
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import anyio

from sandboxkit.errors import ImageNotFoundError, SandboxStartError
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._agent.link import BROKEN
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.agent import HostedAgentProvider, HostedInstanceT
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.records import AccountRecords, short
from sandboxkit.types import SandboxSpec

_LIFETIME = 900.0
"""Lifetime in seconds of a sandbox from which an image is made."""
_log = logging.getLogger("sandboxkit.hosted")


@dataclass(frozen=True, slots=True)
class Baked:
    """An image with the agent built in, made by `sandboxkit bake`."""

    image: str
    """The image from which it was made."""
    reference: str
    """The vendor's reference, which new sandboxes use instead of `image`."""
    version: str
    """The version of its agent, see `install.version`."""

    @property
    def current(self) -> bool:
        """Whether it has the agent of this sandboxkit version; starts ignore all other baked images."""
        return self.version == install.version()


class BakingProvider(HostedAgentProvider[HostedInstanceT]):
    """`HostedAgentProvider` for a vendor that can make an image of a sandbox's files.

    A subclass implements the abstract methods below.
    """

    _creations: Creations
    _root_is_ours: ClassVar[bool] = True

    def __init__(self, kind: type[HostedInstanceT]) -> None:
        super().__init__(kind)
        self._reported: set[str] = set()
        """Baked images with another version's agent that have already been logged."""

    @abstractmethod
    def _account_name(self) -> str:
        """Return a string that identifies the account; it may contain credentials."""

    @abstractmethod
    def _image_of(self, spec: SandboxSpec) -> str:
        """Return the spec's image, or the default one."""

    def _may_bake(self, spec: SandboxSpec) -> bool:
        """Return whether a sandbox from a baked image can honour the whole spec."""
        return True

    @abstractmethod
    async def _bare(self, spec: SandboxSpec) -> str:
        """Make a sandbox without an agent; return its id. Raises what `create` raises."""

    @abstractmethod
    async def _snapshot(self, sandbox_id: str, name: str) -> str:
        """Make an image of a sandbox's files; return its reference, for a spec's `image`.

        Raises SandboxError; an image of that name may exist even then.
        """

    @abstractmethod
    async def _snapshot_there(self, name: str, reference: str | None) -> str | None:
        """Return an existing image's reference, or None; looks it up by `reference` if the vendor's
        images have no names, else by `name`."""

    @abstractmethod
    async def _remove_snapshot(self, reference: str) -> None:
        """Remove an image. A missing image is no error."""

    @abstractmethod
    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        """Make a sandbox from the spec's image, with a running agent; return its id.

        Raises what `create` raises.
        """

    async def create(self, spec: SandboxSpec) -> str:
        return await self._from_baked(spec, None)

    async def create_for(self, spec: SandboxSpec, first: FirstCommand) -> str:
        return await self._from_baked(spec, first)

    async def _from_baked(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        """Make a sandbox, from a baked image if there is a current one."""
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
            self._assumed_agents.setdefault(baked.reference, install.PRESENT)
            try:
                return await self._make(replace(spec, image=baked.reference), first)
            except ImageNotFoundError:
                self._forget_baked(baked)  # the image was removed by other means
        return await self._make(spec, first)

    async def bake(self, image: str | None, *, renew: bool = False) -> Baked:
        """Build the agent into `image`, or into the default image; later starts use the result.

        Without `renew`, an existing baked image is returned. One of another sandboxkit version is removed.
        Raises what `create` raises.
        """
        spec = SandboxSpec(image=image, lifetime=_LIFETIME)
        self.check(spec)
        made_of, images = self._image_of(spec), self._baked()
        name = f"sandboxkit-{short(made_of, 8)}-{install.version()}"
        before = images.find(made_of)
        known = before.reference if before is not None and before.current else None
        reference = await self._snapshot_there(name, known)
        if reference is not None and renew:
            await self._remove_snapshot(reference)
            reference = None
        baked = Baked(made_of, reference or "", install.version())
        if reference is None:
            baked = await self._newly_baked(spec, name, baked)
        images.keep(made_of, baked)
        if before is not None and before.reference != baked.reference:
            await self._remove_snapshot(before.reference)
        return baked

    async def _newly_baked(self, spec: SandboxSpec, name: str, baked: Baked) -> Baked:
        sandbox_id = await self._bare(spec)
        async with self._creations.preparing(sandbox_id):
            await self._put(sandbox_id)
            # Shielded, because the vendor would finish a cancelled snapshot, which nothing would record.
            with anyio.CancelScope(shield=True):
                baked = replace(baked, reference=await self._snapshot(sandbox_id, name))
                self._baked().keep(baked.image, baked)
            # Within the context, which deletes the sandbox again if this fails or is cancelled.
            await self.delete(sandbox_id)
        return baked

    async def baked(self) -> list[Baked]:
        """List the images that `bake` made, as recorded in this user's state folder."""
        return list(self._baked())

    async def unbake(self, baked: Baked) -> None:
        """Remove an image that `bake` made. A missing image is no error."""
        await self._remove_snapshot(baked.reference)
        self._forget_baked(baked)

    def _baked(self) -> AccountRecords[Baked]:
        prefix = f"{self.name}-{short(self._account_name(), 16)}-"
        return AccountRecords("baked", Baked, prefix, partial(short, digits=16))

    def _forget_baked(self, baked: Baked) -> None:
        """Delete the record, unless a newer one for the same image has replaced it."""
        if self._baked().find(baked.image) == baked:
            self._baked().forget(baked.image)

    async def _put(self, sandbox_id: str) -> None:
        """Store the agent in a sandbox's files."""
        assumed = install.LIKELY
        while True:
            stream = await self._run(sandbox_id, install.command("", "put", assumed=assumed))
            found = install.Found(stream, install.data_of(assumed))
            try:
                await found.send(b"")
                await found.read_preamble()
                return
            except install.WantsError as error:
                assumed = error.arch
            except install.NoAgentError as error:
                raise SandboxStartError(
                    f"the agent cannot be stored in sandbox {sandbox_id!r}: {error}"
                ) from error
            except BROKEN as error:
                raise self._broke(sandbox_id) from error
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
