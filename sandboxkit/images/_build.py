"""Finds the snapshot of a recipe. If there is none, one process runs the steps and others wait for it."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import anyio.to_thread

from sandboxkit._life import _owners
from sandboxkit._session import Session
from sandboxkit._snapshot import Snapshot, listed
from sandboxkit.errors import ImageBuildError, SandboxError, SnapshotNotFoundError
from sandboxkit.images import _dockerfile
from sandboxkit.images._lock import only_builder
from sandboxkit.images._steps import ImageStep, StepFailed
from sandboxkit.provider import Provider
from sandboxkit.types import Dockerfile, SandboxSpec, SnapshotInfo

TAG = SnapshotInfo.image_tag
_LEFT = 0.5
"""Which share of the wanted lifetime an image must have left to be used."""
_NAME = 500
"""How many characters of a recipe the name of its snapshot has."""
_log = logging.getLogger("sandboxkit.images")


# Any: options as SpecOptions has them, which were checked.
async def build(
    provider: Provider,
    spec: SandboxSpec,
    base: str | Dockerfile | None,
    steps: Sequence[ImageStep],
    options: dict[str, Any],
    ttl: float,
    progress: Callable[[str], None] | None,
) -> Snapshot:
    """Return the snapshot of a recipe; see `Image.build`."""
    tell = progress or _log.info
    file = base if isinstance(base, Dockerfile) else None
    content = None if file is None else await anyio.to_thread.run_sync(_dockerfile.digest, file)
    own = await anyio.to_thread.run_sync(lambda: [step.digest() for step in steps])
    digests = _digests(provider.name, spec, content, own)
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
        async with AsyncExitStack() as stack:
            if start is not None:
                options = {**options, "image": None, "snapshot": start.id}
            elif file is not None:
                image = await _built(provider, spec, file, tell, stack)
                if content != await anyio.to_thread.run_sync(_dockerfile.digest, file):
                    raise ImageBuildError(f"the context of {file.path} changed during the build")
                options = {**options, "image": image}
            session = await stack.enter_async_context(Session(provider, **options))
            sandbox = await stack.enter_async_context(session.sandbox())
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
            return await sandbox.snapshot(_recipe(base, steps), ttl=ttl, tags={TAG: digests[-1]})


async def _built(
    provider: Provider,
    spec: SandboxSpec,
    file: Dockerfile,
    tell: Callable[[str], None],
    stack: AsyncExitStack,
) -> str:
    """Return the image of a Dockerfile, which stays until the stack is left."""
    for note in file.notes:
        tell(note)
    making = provider.built_image(file, str(spec.network), tell)
    try:
        with anyio.fail_after(spec.lifetime):
            return await stack.enter_async_context(making)
    except TimeoutError:
        raise ImageBuildError(
            f"the build of {file.path} did not end within lifetime={spec.lifetime:g} s"
        ) from None


def _recipe(base: str | Dockerfile | None, steps: Sequence[ImageStep]) -> str:
    """Return the base and the steps on one line, shortened: the name of the image's snapshot."""
    texts = [f"FROM {base or 'default'}"]
    if isinstance(base, Dockerfile):
        texts = [each.text for each in base.instructions if each.text]
    texts += [step.text for step in steps]
    line = "; ".join(" ".join(text.split()) for text in texts)
    return line[:_NAME].encode("utf-8", "replace").decode()


def _digests(
    provider: str, spec: SandboxSpec, content: str | None, steps: Sequence[str]
) -> list[str]:
    """Return the digest of the base, and after each step, given by its own digest, that of all until then.

    `content` is the digest of a base that is a Dockerfile.
    """
    base = content or spec.image or os.environ.get(f"SANDBOXKIT_{provider.upper()}_IMAGE")
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
