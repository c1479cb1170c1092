"""Pushes snapshots to the registry of `snapshot_registry`, and removes them from it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._registry import (
    ImageLayer,
    ImageRegistry,
    ImageRepository,
    digest_of,
)
from sandboxkit.providers.kubernetes._snapshot_image import SnapshotImage
from sandboxkit.providers.kubernetes._snapshot_store import KeptFiles


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
