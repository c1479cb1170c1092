"""Session: sandboxes that share a provider, default options and a lifetime."""

import asyncio
import builtins
import dataclasses
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from typing import Self, Unpack

import anyio

from sandboxkit import (
    _ambient,
    _arguments,
    _cleanup,
    _exit,
    _forks,
    _loop,
    _owners,
    _registry,
    _tags,
)
from sandboxkit._life import Home, Life
from sandboxkit._operation import Operation
from sandboxkit._places import Places
from sandboxkit._pool import Pool
from sandboxkit._process import OUTPUT_LIMIT, Process
from sandboxkit._sandbox import Sandbox
from sandboxkit._slots import Slots
from sandboxkit._spec import PRELOAD, SpecOptions, build
from sandboxkit._work import Work, begun
from sandboxkit.display.signatures import spelled_out, with_options
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider
from sandboxkit.types import (
    Diagnosis,
    Interpreter,
    PoolStats,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)


@with_options
class Session:
    """Sandboxes that share a provider, default options and a lifetime.

    `provider` is a name, a Provider, or None for SANDBOXKIT_PROVIDER, else local on Linux and
    docker elsewhere. `max_concurrency` caps how many sandboxes live or start at a time; further
    ones wait. `max_live` caps them for all processes of this user on this machine together, of
    the local or the docker provider each; without it SANDBOXKIT_MAX_LIVE does, where that is
    set. It must be the same in all of them. `pool` keeps that many started sandboxes ready, or
    `(least, most)`: as many as were wanted lately of each set of options, filled in the background
    from the entering of the context on. Each serves one job unless `reuse="reset"`. They count for
    both caps. The other keywords are the options of a sandbox (`SpecOptions`), as defaults for
    `sandbox()`. Leaving the context closes the session: it stops every sandbox that it made and that is
    not detached. Sessions left open are closed at interpreter exit.
    """

    @spelled_out
    def __init__(
        self,
        provider: str | Provider | None = None,
        *,
        max_concurrency: int | None = None,
        max_live: int | None = None,
        pool: int | tuple[int, int] | None = None,
        **spec: Unpack[SpecOptions],
    ) -> None:
        if max_concurrency is not None:
            _arguments.whole("max_concurrency", max_concurrency)
        self._spec = build(SandboxSpec(), spec)
        self._owns_provider = not isinstance(provider, Provider)
        self._provider = provider if isinstance(provider, Provider) else _registry.load(provider)
        home = _homes.setdefault(self._provider, os.getpid())
        _forks.refuse(home, f"provider {self._provider!r}", "make a new one after a fork")
        self._provider.check(self._spec)
        self.id = secrets.token_hex(6)
        slots = Slots(max_concurrency, _places(self._provider, max_live))
        self._home = Home(slots, begins=self._begin, mark=self._mark)
        self._pool: Pool | None = None
        if pool is not None:
            bounds = _bounds(pool, max_concurrency, self._spec)
            self._pool = self._home.pool = Pool(self._provider, self._home, self._spec, bounds)
        self._uncounted = dataclasses.replace(self._home, slots=Slots())
        self._sandboxes = self._home.lives
        self._refuse_reuse(self._spec)
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._sweep: Work | None = None
        self._pid = os.getpid()
        _exit.register(self)

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._provider.name

    @property
    def pool(self) -> int:
        """How many sandboxes its pool may keep ready; 0 where it has none."""
        return 0 if self._pool is None else self._pool.most

    @property
    def resets(self) -> bool:
        """Whether `reuse="reset"` goes here: it has a pool, and its provider can reset sandboxes."""
        return self._pool is not None and type(self._provider).reset is not Provider.reset

    @with_options
    @spelled_out
    def sandbox(self, *, counted: bool = True, **overrides: Unpack[SpecOptions]) -> Sandbox:
        """Make a sandbox with the session's options and these over them. No I/O until used.

        With `counted=False` it is one beyond `max_concurrency` and `max_live`: for the few that serve all the
        others, which would wait for each other otherwise.
        """
        self._refuse_closed()
        _arguments.flag("counted", counted)
        spec = build(self._spec, overrides)
        self._provider.check(spec)
        self._refuse_reuse(spec)
        return Sandbox(self._provider, spec, self._home if counted else self._uncounted)

    @spelled_out
    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
        **overrides: Unpack[SpecOptions],
    ) -> Process:
        """Run one command in a fresh sandbox, which is deleted once the command has ended.

        The result is there before the deletion is; `close()` waits for it. See `Sandbox.exec`.
        """
        sandbox = self.sandbox(**overrides)
        process = sandbox.exec(
            argv,
            cwd=cwd,
            timeout=timeout,
            check=check,
            stdin=stdin,
            pty=pty,
            output_limit=output_limit,
        )
        return self._last(sandbox, process)

    @spelled_out
    def run_python(
        self,
        code: str,
        *,
        args: Sequence[str] = (),
        preload: Sequence[str] | None = None,
        python: str | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        output_limit: int | None = OUTPUT_LIMIT,
        **overrides: Unpack[SpecOptions],
    ) -> Process:
        """Run Python code in a sandbox of its own; the result is that of `python3 -I -c`.

        It is forked from an interpreter that was started with the sandbox and has `preload`
        imported. Without `preload` and `python` that is the session's `interpreter`, else a
        `python3` with the usual imports, from bisect and json to typing. The sandbox is deleted afterwards; with `pool=` and
        `reuse="reset"` it is made clean for the next, which is the fast way. `env` is that of the
        code, so that it takes no sandbox of its own. See `Sandbox.run_python`.
        """
        if "interpreter" not in overrides:
            known = self._spec.interpreter or Interpreter(preload=PRELOAD)
            overrides["interpreter"] = Interpreter(
                known.program if python is None else python,
                known.preload if preload is None else tuple(preload),
                known.setup,
            )
        elif preload is not None or python is not None:
            raise ConfigurationError("interpreter= goes neither with preload= nor with python=")
        env = overrides.pop("env", None)
        sandbox = self.sandbox(**overrides)
        process = sandbox.run_python(
            code,
            args=args,
            cwd=cwd,
            env=env,
            timeout=timeout,
            check=check,
            stdin=stdin,
            output_limit=output_limit,
        )
        return self._last(sandbox, process)

    @spelled_out
    def warm(self, **overrides: Unpack[SpecOptions]) -> Operation[None]:
        """Fill the pool with sandboxes of these options, and wait until there is no room for more.

        Raises what the creation of one raised. Without a pool: ConfigurationError.
        """
        self._refuse_closed()
        pool, spec = self._pool, build(self._spec, overrides)
        self._provider.check(spec)
        if pool is None or not pool.takes(spec):
            raise ConfigurationError(
                "there is nothing to fill: make the Session with pool=, and neither command= nor "
                "detach=True"
            )
        return Operation(pool.warm(spec))

    def pool_stats(self) -> PoolStats:
        """What the pool has now, how often it was of use, and why sandboxes were thrown away."""
        if self._pool is None:
            raise ConfigurationError("this session has no pool: make it with pool=")
        return self._pool.stats()

    def list(
        self, tags: _tags.Tags | None = None, state: SandboxState | None = None
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List the provider's sandboxes that carry all of `tags`, whichever process made them."""
        self._refuse_closed()
        return _ambient.listed(self._provider, tags, state)

    def diagnose(self) -> Operation[Diagnosis]:
        """Say whether the backend can work here and now, without making a sandbox."""
        self._refuse_closed()
        return Operation(self._provider.diagnose())

    def from_id(self, sandbox_id: str) -> Operation[Sandbox]:
        """Reach a sandbox by id; closing this session leaves it alone.

        Raises SandboxNotFoundError.
        """
        self._refuse_closed()
        sandbox_id = _arguments.text("sandbox_id", sandbox_id)

        async def run() -> Sandbox:
            await self._provider.get(sandbox_id)
            return Sandbox(self._provider, SandboxSpec(), self._home, sandbox_id)

        return Operation(run())

    def adopt(self, sandbox: Sandbox | str) -> Operation[Sandbox]:
        """Take over a sandbox, given itself or its id: closing this session stops it."""
        self._refuse_closed()
        given = sandbox.id if isinstance(sandbox, Sandbox) else sandbox
        if given is None and isinstance(sandbox, Sandbox):
            raise ConfigurationError(
                "cannot adopt a sandbox that has not started; start() it first"
            )
        if isinstance(sandbox, Sandbox) and sandbox.spec.reuse == "reset":
            raise ConfigurationError("a sandbox with reuse='reset' is its own session's for good")
        sandbox_id = _arguments.text("sandbox", given)

        async def run() -> Sandbox:
            await self._provider.get(sandbox_id)
            adopted = Sandbox(self._provider, SandboxSpec(), self._home, sandbox_id)
            await adopted._life.take_slot()
            try:
                self._refuse_closed()  # meanwhile, which does not stop this one
            except ConfigurationError:
                adopted._life.leave_slot()
                raise
            self._sandboxes.add(adopted._life)
            return adopted

        return Operation(run())

    def close(self) -> Operation[None]:
        """Stop every sandbox of this session, in parallel, and release the provider.

        All are attempted; failures are raised together as one ExceptionGroup, and closing
        again tries those that failed again. Cancelling it ends the waiting only. In a forked
        child it does nothing.
        """
        self._closed = True
        return begun(self._close)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close().result()
        except KeyboardInterrupt:
            _exit.abandon()
            raise

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _open(self) -> None:
        if self._pool is not None:
            self._refuse_closed()
            _loop.get().call_soon_threadsafe(self._pool.open)

    def _last(self, sandbox: Sandbox, process: Process) -> Process:
        # A deletion that fails leaves it in _sandboxes: close() tries again and raises.
        process.add_done_callback(
            lambda _: process._background.call_soon_threadsafe(sandbox._life.stop)
        )
        return process

    def _close(self) -> asyncio.Task[None] | None:
        if os.getpid() != self._pid:
            return None
        if self._closing is None or (
            self._closing.done()
            and (self._sandboxes or self._closing.cancelled() or self._closing.exception())
        ):
            self._closing = asyncio.create_task(self._stop_all())
            self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._closing

    async def _stop_all(self) -> None:
        errors: list[Exception] = []

        async def stop(sandbox: Life) -> None:
            try:
                if sandbox.spec.detach:
                    sandbox.leave_slot()  # it lives on, and nobody here will hear of its end
                elif stopping := sandbox.stop():
                    await asyncio.shield(stopping)
            except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
                errors.append(error)
            else:
                self._sandboxes.discard(sandbox)

        if self._pool is not None:
            self._pool.close()
        async with anyio.create_task_group() as group:
            for sandbox in list(self._sandboxes):
                group.start_soon(stop, sandbox)
        if self._pool is not None:
            await self._pool.settle()
        if self._sweep is not None:
            await self._sweep.undo()
        what = f"{len(errors)} sandboxes could not be stopped" if errors else "closing failed"
        if self._owns_provider:
            try:
                await self._provider.aclose()
            except Exception as error:  # noqa: BLE001 - it must not hide the others
                errors.append(error)
        _exit.forget(self)
        if errors:
            raise ExceptionGroup(what, errors)

    def _begin(self, sandbox: Life) -> None:
        self._refuse_closed()
        self._sandboxes.add(sandbox)
        if self._sweep is None and self._provider.on_this_machine:
            self._sweep = Work(lambda: _cleanup.sweep_strays(self._provider))

    def _mark(self, spec: SandboxSpec) -> SandboxSpec:
        marks: dict[str, str] = {
            _tags.SESSION: self.id,
            _tags.OWNER: _owners.owner(),
            _tags.BIRTH: _owners.birth(),
        }
        if spec.detach:
            marks[_tags.DETACH] = "1"
        if spec.lifetime is not None:
            marks[_tags.EXPIRES] = f"{time.time() + spec.lifetime:.0f}"
        return dataclasses.replace(spec, tags={**spec.tags, **marks})

    def _refuse_reuse(self, spec: SandboxSpec) -> None:
        if spec.reuse == "reset" and self._pool is None:
            raise ConfigurationError(
                "reuse='reset' needs a pool to come back to: make the Session with pool="
            )

    def _refuse_closed(self) -> None:
        _forks.refuse(self._pid, f"session {self.id}", "make a new Session after a fork")
        if self._closed:
            raise ConfigurationError(f"session {self.id} is closed; make a new Session")


_homes: "weakref.WeakKeyDictionary[Provider, int]" = weakref.WeakKeyDictionary()
"""The process whose connections each provider has."""


def _places(provider: Provider, max_live: int | None) -> Places | None:
    name = "max_live"
    if max_live is None and provider.on_this_machine:
        given = os.environ.get("SANDBOXKIT_MAX_LIVE")
        if not given:
            return None
        name = "SANDBOXKIT_MAX_LIVE"
        max_live = int(given) if given.isdecimal() else _arguments.refuse(name, given, "a number")
    if max_live is None:
        return None
    _arguments.whole(name, max_live)
    if not provider.on_this_machine:
        raise ConfigurationError(
            f"max_live={max_live}: the sandboxes of {provider.name!r} are not on this machine; "
            "use max_concurrency"
        )
    return Places(provider.name, max_live)


def _bounds(
    pool: int | tuple[int, int], max_concurrency: int | None, spec: SandboxSpec
) -> tuple[int, int]:
    name = "pool"
    least, most = pool if isinstance(pool, tuple) and len(pool) == 2 else (0, pool)
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        _arguments.refuse(name, pool, "a number, or a tuple (least, most)")
    if not isinstance(most, int) or _arguments.whole(name, most) < least:
        _arguments.refuse(name, pool, "a number, or a tuple (least, most)")
    if max_concurrency is not None and most > max_concurrency:
        raise ConfigurationError(
            f"pool={pool!r} with max_concurrency={max_concurrency}: those that are ready count as "
            "well, so there can never be as many"
        )
    if not Pool.takes(spec):
        raise ConfigurationError(
            f"pool={pool!r} goes neither with detach=True nor with a command among the session's "
            "options; give these to sandbox()"
        )
    return least, most
