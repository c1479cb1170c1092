"""Datasets and volumes in a PersistentVolumeClaim: filled once by a keeper pod, mounted by sandboxes.

A keeper is a sandbox's pod that mounts the whole claim and runs `_in_keeper.py`. Its agent ends it when its
owner is gone. To remove something, a keeper first renames it and then the pods are listed: a pod that was
created before is in the list and keeps it; the node of a later one finds nothing, makes an empty folder, and
`start` notices and tries again.
"""

import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxkit.errors import (
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxStartError,
    VolumeError,
)
from sandboxkit.provider import DatasetStore, volume_of
from sandboxkit.providers._agent.box import AgentBox
from sandboxkit.providers.kubernetes import _pod, _tags
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._claim import folder_of, used_by
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.types import SandboxSpec

KEEPER = SandboxSpec(network="internet", lifetime=86_400, tags={"sandboxkit.keeper": "storage"})
_TIME = 315_532_800
_LINE = 32 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


BoxT = TypeVar("BoxT", bound=AgentBox)


class ClaimStorage:
    """The datasets and volumes of one claim."""

    def __init__(
        self,
        api: Api,
        claim: str | None,
        create: Callable[[], Awaitable[AgentBox]],
    ) -> None:
        """`create` makes a keeper."""
        self._api, self._claim = api, claim
        self._create = create
        self._ready: set[str] = set()
        self._lock = anyio.Lock()

    async def start(self, mounts: Mapping[str, str], create: Callable[[], Awaitable[BoxT]]) -> BoxT:
        """Make what `SandboxSpec.mounts` names, then a sandbox with `create`; return it.

        Raises DatasetNotFoundError if neither the claim nor this machine's store has a dataset.
        """
        missing: list[str] = []
        for _ in range(2):
            await self._ensure(set(mounts.values()))
            box = await create()
            try:
                missing = [
                    source
                    for point, source in mounts.items()
                    if not await self._is_shown(box, point, source)
                ]
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await box.delete()
                raise
            if not missing:
                return box
            self._ready.difference_update(missing)
            await box.delete()
        raise SandboxStartError(
            f"{missing[0]!r} was removed from the claim {self._claim!r} while a sandbox with it started: "
            "try again"
        )

    async def remove_unused(self, *, dry_run: bool) -> list[str]:
        """Remove the datasets that no pod mounts; return their digests."""
        if self._claim is None:
            return []
        async with self._keeper() as keeper:
            if dry_run:
                names = await self._ask(keeper, "show", "datasets")
                used, _ = await self._users("datasets")
            else:
                hidden = await self._ask(keeper, "hide", "datasets", keeper)
                used = await self._end(keeper, "datasets", hidden)
                names = [name for _, name, whole in hidden if whole]
        return [f"sha256:{name}" for name in dict.fromkeys(names) if name not in used]

    async def volumes(self) -> list[str]:
        """Return the names of all volumes, sorted."""
        if self._claim is None:
            return []
        async with self._keeper() as keeper:
            names: list[str] = await self._ask(keeper, "show", "volumes")
        return names

    async def remove_volume(self, name: str) -> None:
        """Remove a volume. Raises VolumeError if there is none, or if a pod mounts it."""
        hidden: list[Any] = []
        used: set[str] = set()
        if self._claim is not None:
            async with self._keeper() as keeper:
                hidden = await self._ask(keeper, "hide", "volumes", keeper, name)
                used = await self._end(keeper, "volumes", hidden)
        if not hidden:
            raise VolumeError(
                f"the claim {self._claim!r} has no volume {name!r}; `sandboxkit volumes ls` shows all"
            )
        if name in used:
            raise VolumeError(
                f"volume {name!r} is in use: stop the sandboxes that mount it, and try again"
            )

    # Any, here and below: answers and pods are JSON.
    async def _end(self, keeper: str, kind: str, hidden: list[Any]) -> set[str]:
        """Restore what is in use of what was hidden, and remove the rest; return the names in use."""
        used, alive = await self._users(kind)
        restored = [folder for folder, name, _ in hidden if name in used]
        removed = [folder for folder, name, _ in hidden if name not in used]
        line = json.dumps([restored, removed, sorted(alive)]).encode() + b"\n"
        await self._ask(keeper, "end", kind, keeper, content=lambda: iter([line]))
        return used

    async def _users(self, kind: str) -> tuple[set[str], set[str]]:
        """Return the names of folders that pods mount, and the names of all pods that have not ended."""
        used: set[str] = set()
        alive: set[str] = set()
        pods = await self._api.path("pods")
        params = {"labelSelector": _tags.selector({})}
        async for pod in self._api.pages(pods, what="list who uses a claim", params=params):
            if _pod.finished_at(pod) is None:
                used |= used_by(pod, kind)
                alive.add(pod["metadata"]["name"])
        return used, alive

    async def _ensure(self, sources: Collection[str]) -> None:
        async with self._lock:
            if self._ready.issuperset(sources):
                return
            async with self._keeper() as keeper:
                for source in sorted(set(sources) - self._ready):
                    kind, name = folder_of(source)
                    if kind == "volumes":
                        await self._ask(keeper, "make", name)
                    else:
                        content = lambda digest=source: DatasetStore().archive(digest)  # noqa: E731
                        await self._ask(keeper, "fill", name, keeper, content=content)
                    self._ready.add(source)

    async def _is_shown(self, box: AgentBox, point: str, source: str) -> bool:
        """Whether a sandbox shows what was stored, and no folder that its node has just made."""
        found = await box.stat(point)
        if volume_of(source) is not None:
            return found.mode & 0o777 == 0o777
        # Not every file system keeps times, but a folder that a node makes is empty.
        return found.mtime == _TIME or bool(await box.list_dir(point))

    @asynccontextmanager
    async def _keeper(self) -> AsyncIterator[str]:
        keeper = await self._create()
        try:
            yield keeper.id
        finally:
            with anyio.CancelScope(shield=True):
                await keeper.delete()

    async def _ask(
        self,
        keeper: str,
        *arguments: str,
        content: Callable[[], Iterator[bytes]] | None = None,
    ) -> Any:
        """Run a command of `_in_keeper.py` and return its answer; "send" is answered with `content`."""
        argv = ("python3", "-c", _program(), *arguments)
        stream = await self._api.exec(keeper, _pod.CONTAINER, argv, sandbox_id=keeper)
        try:
            lines = BufferedByteReceiveStream(stream)
            found = await _answer(stream, lines)
            if found == "send" and content is not None:
                found = await _send(stream, lines, content())
        finally:
            await stream.aclose()
        if isinstance(found, dict):
            raise self._error(found["errno"], found["text"])
        return found

    def _error(self, number: int, text: str) -> SandboxError:
        if number in _FULL:
            return CapacityError(
                f"the claim {self._claim!r} is full: {text}; enlarge it, or run "
                "`sandboxkit cleanup --datasets`"
            )
        if number in _DENIED:
            return ConfigurationError(
                f"the claim {self._claim!r} cannot be written: {text}; let root write to it, or with "
                "security='restricted' uid 65534"
            )
        return SandboxStartError(f"the claim {self._claim!r}: {text}")


async def _send(
    stream: PodExecStream, lines: BufferedByteReceiveStream, content: Iterator[bytes]
) -> Any:
    """Send the content and return the answer, which ends the sending if it comes before."""
    answers: list[Any] = []

    async def feed() -> None:
        try:
            while (chunk := await anyio.to_thread.run_sync(next, content, None)) is not None:
                await stream.send(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the answer says why

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(feed)
            answers.append(await _answer(stream, lines))
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return answers[0]


async def _answer(stream: PodExecStream, lines: BufferedByteReceiveStream) -> Any:
    try:
        return json.loads(await lines.receive_until(b"\n", _LINE))
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
        said = stream.diagnostics
        if "executable file not found" in said:
            raise ConfigurationError(
                "datasets and volumes need python3 in the default image: set SANDBOXKIT_KUBERNETES_IMAGE to "
                f"one that has it ({said})"
            ) from error
        raise ProviderUnavailableError(
            f"the connection to a claim's keeper ended early: {said}"
        ) from error


def _program() -> str:
    return resources.files("sandboxkit.providers.kubernetes").joinpath("_in_keeper.py").read_text()
