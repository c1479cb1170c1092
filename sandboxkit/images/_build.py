"""Finds the snapshot of a recipe. If there is none, one process runs the steps and others wait for it."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio.to_thread

from sandboxkit import _owners
from sandboxkit._session import Session
from sandboxkit._snapshot import Snapshot, listed
from sandboxkit.errors import ImageBuildError, SandboxError, SnapshotNotFoundError
from sandboxkit.images._lock import only_builder
from sandboxkit.images._steps import ImageStep, StepFailed
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxSpec, SnapshotInfo

TAG = SnapshotInfo.image_tag
_LEFT = 0.5
"""Which share of the wanted lifetime an image must have left to be used."""
_log = logging.getLogger("sandboxkit.images")


# Any: options as SpecOptions has them, which were checked.
async def build(
    provider: Provider,
    spec: SandboxSpec,
    steps: Sequence[ImageStep],
    options: dict[str, Any],
    ttl: float,
    progress: Callable[[str], None] | None,
) -> Snapshot:
    """Return the snapshot of a recipe; see `Image.build`."""
    tell = progress or _log.info
    own = await anyio.to_thread.run_sync(lambda: [step.digest() for step in steps])
    digests = _digests(provider.name, spec, own)
    async with only_builder(digests[-1], tell, spec.lifetime):
        known = await _images(provider, ttl * _LEFT)
        done = max((n for n, each in enumerate(digests) if each in known), default=0)
        start = known.get(digests[done])
        if start is not None and done == len(steps):
            with suppress(SnapshotNotFoundError):  # another build needed its room: build it again
                # From here on no build that needs room removes it before a sandbox starts from it.
                await provider.mark_snapshot_used(start.id)
                return Snapshot(provider, start)
            known = await _images(provider, ttl * _LEFT)
            done = max((n for n, each in enumerate(digests[:-1]) if each in known), default=0)
            start = known.get(digests[done])
        await provider.confirm_snapshots()
        if start is not None:
            options = {**options, "image": None, "snapshot": start.id}
        async with Session(provider, **options) as session, session.sandbox() as sandbox:
            for number, step in enumerate(steps[done:], done + 1):
                tell(f"[{number}/{len(steps)}] {step.text}")
                where = f"step {number} of {len(steps)} of the image"
                try:
                    await step.apply(sandbox, tell, own[number - 1])
                except StepFailed as failure:
                    raise ImageBuildError(
                        f"{where} {failure}\n  in: {step.text}",
                        provider=provider.name,
                        sandbox_id=sandbox.id,
                    ) from None
                except SandboxError as error:
                    error.add_note(f"in {where}: {step.text}")
                    raise
            return await sandbox.snapshot(
                f"image-{digests[-1][:12]}", ttl=ttl, tags={TAG: digests[-1]}
            )


def _digests(provider: str, spec: SandboxSpec, steps: Sequence[str]) -> list[str]:
    """Return the digest of the base, and after each step, given by its own digest, that of all until then."""
    base = spec.image or os.environ.get(f"SANDBOXKIT_{provider.upper()}_IMAGE")
    options = (spec.user, spec.profile, spec.workdir, sorted(spec.env.items()))
    digests = [_sha256(json.dumps((provider, base, options, sorted(spec.mounts.items()))))]
    for step in steps:
        digests.append(_sha256(f"{digests[-1]} {step}"))
    return digests


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


async def _images(provider: Provider, left: float) -> dict[str, SnapshotInfo]:
    """Return the backend's images by digest, the newest of each, without those that expire in `left` s."""
    return {
        info.tags[TAG]: info
        for info in await listed(provider, {})
        if TAG in info.tags and not _owners.is_expired(info, soon=left)
    }
