"""Session: sandboxes that share a provider, default options and a lifetime."""

import asyncio
import builtins
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Self, Unpack

import anyio

from sandboxkit import _arguments, _cleanup, _registry, _tags
from sandboxkit._operation import Operation
from sandboxkit._process import OUTPUT_LIMIT, Process
from sandboxkit._sandbox import Sandbox
from sandboxkit._spec import SpecOptions, build
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider
from sandboxkit.types import Diagnosis, PtySize, SandboxInfo, SandboxSpec, SandboxState


class Slots:
    """A hard cap on sandboxes that live or start; used on the background loop only."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._semaphore: anyio.Semaphore | None = None

    async def acquire(self) -> None:
        """Wait for room."""
        if self._limit is None:
            return
        if self._semaphore is None:
            self._semaphore = anyio.Semaphore(self._limit)
        await self._semaphore.acquire()

    def release(self) -> None:
        """Make room for the next one."""
        if self._semaphore is not None:
            self._semaphore.release()


class Session:
    """Sandboxes that share a provider, default options and a lifetime.

    `provider` is a name, a Provider, or None for SANDBOXKIT_PROVIDER, else local on Linux and
    docker elsewhere. `max_concurrency` caps how many sandboxes live or start at a time; further
    ones wait. The other keywords are the fields of `SandboxSpec`, defaults for `sandbox()`.
    Leaving the context closes the session: it stops every sandbox that it made and that is
    not detached. Sessions left open are closed at interpreter exit.
    """

    def __init__(
        self,
        provider: str | Provider | None = None,
        *,
        max_concurrency: int | None = None,
        **spec: Unpack[SpecOptions],
    ) -> None:
        if max_concurrency is not None:
            _arguments.positive("max_concurrency", max_concurrency)
        self._spec = build(SandboxSpec(), spec)
        self._owns_provider = not isinstance(provider, Provider)
        self._provider = provider if isinstance(provider, Provider) else _registry.load(provider)
        self._provider.check(self._spec)
        self.id = secrets.token_hex(6)
        self._slots = Slots(max_concurrency)
        self._sandboxes: set[Sandbox] = set()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._pid = os.getpid()
        _cleanup.register(self)

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._provider.name

    def sandbox(self, *, counted: bool = True, **overrides: Unpack[SpecOptions]) -> Sandbox:
        """Make a sandbox with the session's options and these over them. No I/O until used.

        With `counted=False` it is one beyond `max_concurrency`: for the few that serve all the
        others, which would wait for each other otherwise.
        """
        self._refuse_closed()
        spec = build(self._spec, overrides)
        self._provider.check(spec)
        slots = self._slots if counted else Slots(None)
        sandbox = Sandbox(self._provider, _mark(spec, self.id), slots)
        self._sandboxes.add(sandbox)
        sandbox._gone = self._sandboxes.discard
        return sandbox

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: bytes | str | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
        **overrides: Unpack[SpecOptions],
    ) -> Process:
        """Run one command in a fresh sandbox, which is deleted once the command has ended.

        The result is there before the deletion is; `close()` waits for it. See `Sandbox.exec`.
        """
        sandbox = self.sandbox(**overrides)
        try:
            process = sandbox.exec(
                argv,
                cwd=cwd,
                timeout=timeout,
                check=check,
                stdin=stdin,
                pty=pty,
                output_limit=output_limit,
            )
        except BaseException:
            self._sandboxes.discard(sandbox)
            raise
        # A deletion that fails leaves it in _sandboxes: close() tries again and raises.
        process.add_done_callback(lambda _: sandbox.stop())
        return process

    def list(
        self, tags: _tags.Tags | None = None, state: SandboxState | None = None
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List the provider's sandboxes that carry all of `tags`, whichever process made them."""
        self._refuse_closed()
        wanted = _tags.parse(tags)
        if state is not None:
            state = SandboxState(state)

        async def run() -> builtins.list[SandboxInfo]:
            found = [info async for info in self._provider.list(wanted)]
            return [info for info in found if state in (None, info.state)]

        return Operation(run())

    def diagnose(self) -> Operation[Diagnosis]:
        """Say whether the backend can work here and now, without making a sandbox."""
        self._refuse_closed()
        return Operation(self._provider.diagnose())

    def from_id(self, sandbox_id: str) -> Operation[Sandbox]:
        """Reach a sandbox by id; closing this session leaves it alone.

        Raises SandboxNotFoundError.
        """
        self._refuse_closed()

        async def run() -> Sandbox:
            await self._provider.get(sandbox_id)
            return Sandbox(self._provider, SandboxSpec(), self._slots, sandbox_id)

        return Operation(run())

    def adopt(self, sandbox: Sandbox | str) -> Operation[Sandbox]:
        """Take over a sandbox, given itself or its id: closing this session stops it."""
        self._refuse_closed()
        sandbox_id = sandbox if isinstance(sandbox, str) else sandbox.id
        if sandbox_id is None:
            raise ConfigurationError(
                "cannot adopt a sandbox that has not started; start() it first"
            )

        async def run() -> Sandbox:
            await self._provider.get(sandbox_id)
            adopted = Sandbox(self._provider, SandboxSpec(), self._slots, sandbox_id)
            await adopted._adopt()
            self._sandboxes.add(adopted)
            adopted._gone = self._sandboxes.discard
            return adopted

        return Operation(run())

    def close(self) -> Operation[None]:
        """Stop every sandbox of this session, in parallel, and release the provider.

        All are attempted; failures are raised together as one ExceptionGroup, and closing
        again tries those that failed again. In a forked child it does nothing.
        """
        self._closed = True
        return Operation(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close().result()
        except KeyboardInterrupt:
            _cleanup.abandon()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _close(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._closing is None or (self._closing.done() and self._sandboxes):
            self._closing = asyncio.create_task(self._stop_all())
        await asyncio.shield(self._closing)

    async def _stop_all(self) -> None:
        errors: list[Exception] = []

        async def stop(sandbox: Sandbox) -> None:
            try:
                if not sandbox.spec.detach:
                    await sandbox._stop()
            except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
                errors.append(error)
            else:
                self._sandboxes.discard(sandbox)

        async with anyio.create_task_group() as group:
            for sandbox in list(self._sandboxes):
                group.start_soon(stop, sandbox)
        if self._owns_provider:
            await self._provider.aclose()
        _cleanup.forget(self)
        if errors:
            raise ExceptionGroup(f"{len(errors)} sandboxes could not be stopped", errors)

    def _refuse_closed(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigurationError(
                f"this session belongs to process {self._pid}; make a new Session after a fork"
            )
        if self._closed:
            raise ConfigurationError(f"session {self.id} is closed; make a new Session")


def _mark(spec: SandboxSpec, session_id: str) -> SandboxSpec:
    marks: dict[str, str] = {_tags.SESSION: session_id, _tags.OWNER: _cleanup.owner()}
    if spec.detach:
        marks[_tags.DETACH] = "1"
    if spec.lifetime is not None:
        marks[_tags.EXPIRES] = f"{time.time() + spec.lifetime:.0f}"
    return dataclasses.replace(spec, tags={**spec.tags, **marks})


_ambient: dict[tuple[int, str], Session] = {}
_ambient_lock = threading.Lock()


def ambient(provider: str | None) -> Session:
    """The process-wide session behind `Sandbox.list` and `Sandbox.from_id`; it owns nothing."""
    name = provider or _registry.default_name()
    with _ambient_lock:
        key = (os.getpid(), name)
        if key not in _ambient:
            _ambient[key] = Session(name)
        return _ambient[key]
