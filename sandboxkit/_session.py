"""Session: sandboxes that share a provider, default options and a lifetime."""

import asyncio
import builtins
import dataclasses
import functools
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from typing import NoReturn, Self, Unpack

import anyio

from sandboxkit import _ambient, _registry, _tags
from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._life import _cleanup, _exit, _forks, _loop, _owners
from sandboxkit._life._reconciler import Reconciler
from sandboxkit._life._work import Work, start_detached
from sandboxkit._lifecycle import WITHOUT_ROOM, Lifecycle, SessionContext, State
from sandboxkit._operation import Operation, name_dropped
from sandboxkit._process import OUTPUT_LIMIT, Process
from sandboxkit._room._limiter import Limiter
from sandboxkit._room._machine_semaphore import places
from sandboxkit._room._pool import Pool, bounds, poolable
from sandboxkit._sandbox import Sandbox
from sandboxkit._spec import PRELOAD, build, check
from sandboxkit.display.signatures import spelled_out, with_options
from sandboxkit.errors import ConfigurationError
from sandboxkit.ledger import _ledger
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.telemetry import active
from sandboxkit.types import (
    Diagnosis,
    Interpreter,
    PoolStats,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)

_NAMED = 8
"""How many sandboxes an error about a cap names at most."""


@explained
@foreign_names
@with_options
class Session:
    """Sandboxes that share a provider, default options and a lifetime.

    `provider` is a name, a service's URL, a Provider, or None for SANDBOXKIT_PROVIDER, else local on
    Linux and docker elsewhere. `max_concurrency` caps how many sandboxes live or start at a time; further
    ones wait. `max_live` caps them over all processes of this user on this machine, separately for
    the local and the docker provider; its default is SANDBOXKIT_MAX_LIVE, if set. It must be the
    same in all processes. `pool` is a number, or `(least, most)`: the session keeps up to so many
    started sandboxes ready, and only `least` after ten minutes without a start. They are created in
    the background once the context is entered, first with the session's options, later also with
    other options that are requested repeatedly. Each serves one job unless `reuse="reset"`, and
    counts against both caps. `record` is the path of a new file that stores every call and its result;
    `replay` is the path of such a file, which replaces the backend. The other keywords are sandbox
    options (`SpecOptions`), the defaults for `sandbox()`. Leaving the context closes the session, which
    stops every sandbox that it made and that is not detached. Sessions left open are closed at
    interpreter exit.
    """

    @spelled_out
    def __init__(
        self,
        provider: str | Provider | None = None,
        *,
        max_concurrency: int | None = None,
        max_live: int | None = None,
        pool: int | tuple[int, int] | None = None,
        record: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
        **spec: Unpack[SpecOptions],
    ) -> None:
        _loop.refuse_trio()
        if max_concurrency is not None:
            _arguments.integer("max_concurrency", max_concurrency)
        self._spec = build(SandboxSpec(), spec)
        wrapped = record is not None or replay is not None
        if wrapped:
            from sandboxkit.recording import wrapped as recorded

            provider = recorded(provider, record=record, replay=replay, pool=pool)
        self._owns_provider = wrapped or not isinstance(provider, Provider)
        self._provider = provider if isinstance(provider, Provider) else _registry.load(provider)
        owner = _owner_pids.setdefault(self._provider, os.getpid())
        _forks.refuse(owner, f"provider {self._provider!r}", "make a new one after a fork")
        check(self._provider, self._spec)
        self.id = secrets.token_hex(6)
        kept = (0, 0) if pool is None else bounds(pool, max_concurrency, self._spec)
        self._limiter = Limiter(max_concurrency, places(self._provider, max_live))
        context = SessionContext(begins=self._begin, mark=self._mark, full=self._full)
        if (reporting := active()) is not None:
            reporting.instrument(self._provider)
            context.waited = reporting.waited
        if replay is None and (ledger := _ledger.of_process()) is not None:
            context.measure = ledger.begin
        self._context, self._sandboxes = context, context.lives
        self._reconciler = Reconciler(self._provider, context, self.id, self._limiter)
        context.look = self._reconciler.look
        self._pool = Pool(self._provider, context, self._limiter, self._spec, kept)
        context.pool = self._pool
        self._uncounted = dataclasses.replace(context, counted=False)
        self._refuse_reuse(self._spec)
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._sweep: Work | None = None
        self._pid = os.getpid()
        _exit.register(self)
        if not self._owns_provider:
            _exit.register_backend(self._provider)

    def __repr__(self) -> str:
        return f"<Session {self.id} provider={self.provider_name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied. Make a Session in each process")

    @staticmethod
    def require_provider(provider: str | Provider | None) -> None:
        """Raise ConfigurationError if there is no such provider; nothing is imported or made."""
        _registry.check(provider)

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._provider.name

    @property
    def provider(self) -> Provider:
        """The session's provider object, for calls that only `Provider` has. Its coroutines run on
        sandboxkit's event loop: `Operation(session.provider.box(id).info())`."""
        return self._provider

    @property
    def pool(self) -> int:
        """How many sandboxes the pool may keep ready; 0 without a pool."""
        return self._pool.most

    @property
    def resets(self) -> bool:
        """Whether `reuse="reset"` is supported: there is a pool and the provider can reset sandboxes."""
        return self._pool.most > 0 and self._provider.has("reset")

    @property
    def quiet(self) -> float:
        """Seconds since a sandbox of this session last started running or ended; see `Sandbox.queued`."""
        return time.monotonic() - self._context.moved

    @with_options
    @spelled_out
    def sandbox(self, *, counted: bool = True, **overrides: Unpack[SpecOptions]) -> Sandbox:
        """Make a sandbox whose options override the session's. It does no I/O until it is used.

        From a snapshot that this session took it has the network that the snapshot's sandbox had then, unless
        `network=` is given here or the session has none. A sandbox with all of the internet says nothing.
        With `counted=False` it does not count against `max_concurrency` and `max_live`. Use this for a
        few sandboxes that serve all others, to avoid a deadlock.
        """
        self._refuse_closed()
        _arguments.flag("counted", counted)
        spec = build(self._spec, overrides)
        network = self._context.narrowed.get(spec.snapshot or "")
        offline = (spec.network, spec.egress, spec.native_rules) == ("none", None, None)
        if network is not None and "network" not in overrides and not offline:
            spec = build(spec, {"network": network})
        check(self._provider, spec)
        self._refuse_reuse(spec)
        return Sandbox(self._provider, spec, self._context if counted else self._uncounted)

    @spelled_out
    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
        **overrides: Unpack[SpecOptions],
    ) -> Process:
        """Run one command in a fresh sandbox, which is deleted once the command has ended.

        The result does not wait for the deletion; `close()` does. See `Sandbox.exec`.
        """
        sandbox = self.sandbox(**overrides)
        process = sandbox.exec(
            argv,
            cwd=cwd,
            timeout=timeout,
            deadline=deadline,
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
        deadline: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        output_limit: int | None = OUTPUT_LIMIT,
        **overrides: Unpack[SpecOptions],
    ) -> Process:
        """Run Python code in a sandbox of its own; the result is that of `python3 -I -c`.

        The code runs in a fork of an interpreter that started with the sandbox and has imported
        `preload`. The default is the session's `interpreter`, else `python3` with common modules of
        the standard library. The sandbox is deleted afterwards, or with `pool=` and `reuse="reset"`
        cleaned for the next run, which is faster. `env` applies to the code, not to the sandbox, so it
        does not affect pooling. See `Sandbox.run_python`.
        """
        env = overrides.pop("env", None)
        plain = not overrides and preload is None and python is None
        if "interpreter" not in overrides:
            known = self._spec.interpreter or Interpreter(preload=PRELOAD)
            overrides["interpreter"] = Interpreter(
                known.program if python is None else python,
                known.preload if preload is None else _arguments.arguments("preload", preload),
                known.setup,
            )
        elif preload is not None or python is not None:
            raise ConfigurationError("interpreter= cannot be combined with preload= or python=")
        self._refuse_closed()
        made = Sandbox(self._provider, self._python_spec, self._context) if plain else None
        sandbox = made or self.sandbox(**overrides)
        process = sandbox.run_python(
            code,
            args=args,
            cwd=cwd,
            env=env,
            timeout=timeout,
            deadline=deadline,
            check=check,
            stdin=stdin,
            output_limit=output_limit,
        )
        return self._last(sandbox, process)

    @spelled_out
    def warm(self, **overrides: Unpack[SpecOptions]) -> Operation[None]:
        """Fill the pool with sandboxes of these options and wait until it is full.

        Raises the error of a failed creation, and ConfigurationError without a pool.
        """
        self._refuse_closed()
        pool, spec = self._pool, build(self._spec, overrides)
        check(self._provider, spec)
        if not pool.most or not poolable(spec):
            raise ConfigurationError(
                "there is no pool to fill: make the Session with pool=, without command= or detach=True"
            )
        return Operation(pool.warm(spec))

    def pool_stats(self) -> PoolStats:
        """Return the pool's contents, its hits and misses, and why sandboxes were thrown away.

        Raises ConfigurationError without a pool.
        """
        if not self._pool.most:
            raise ConfigurationError("this session has no pool: make it with pool=")
        return self._pool.stats()

    def explain(self) -> str:
        """Return a text to print: each sandbox's state, how long it has lasted, and the line that made it.

        It also shows the use of the caps, the pool's contents, and why creations wait.
        """
        lives = sorted(self._context.lives, key=lambda life: life.since)
        lines = [f"session {self.id} of {self._provider.name!r}: {len(lives)} sandboxes"]
        lines += [f"  {life.describe()}" for life in lives]
        if any(life.state is State.QUEUED for life in lives):
            lines.append(f"  room: {self._full()}")
        throttle = self._context.throttle
        if (refusal := throttle.refusal) is not None:
            lines.append(f"  creations wait {throttle.closed_for:.0f} s more: {refusal}")
        lines += [f"  {line}" for line in self._provider.waiting()]
        if self._pool.most:
            lines.append(f"  pool: {self._pool.stats()}")
        return "\n".join(lines)

    def list(
        self, tags: _tags.Tags | None = None, state: SandboxState | None = None
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List the provider's sandboxes that carry all of `tags`, whichever process made them."""
        self._refuse_closed()
        return _ambient.listed(self._provider, tags, state)

    def diagnose(self) -> Operation[Diagnosis]:
        """Check whether the backend works on this machine now, without making a sandbox."""
        self._refuse_closed()
        return Operation(self._provider.diagnose())

    def from_id(self, sandbox_id: str) -> Operation[Sandbox]:
        """Return an existing sandbox by its id; closing this session does not stop it.

        Raises SandboxNotFoundError.
        """
        self._refuse_closed()
        sandbox_id = _arguments.text("sandbox_id", sandbox_id)
        return Operation(Sandbox._reached(self._provider, self._context, sandbox_id))

    def adopt(self, sandbox: Sandbox | str) -> Operation[Sandbox]:
        """Take over a sandbox, given as an object or an id: closing this session then stops it.

        Raises SandboxNotFoundError, and ConfigurationError for a sandbox that has not started or has
        `reuse="reset"`.
        """
        self._refuse_closed()
        given: object = sandbox
        if isinstance(sandbox, Sandbox):
            given = sandbox.id
            if given is None:
                raise ConfigurationError("the sandbox has not started; start() it first")
            if sandbox.spec.reuse == "reset":
                raise ConfigurationError(
                    "a sandbox with reuse='reset' cannot move to another session"
                )
        sandbox_id = _arguments.text("sandbox", given)

        async def run() -> Sandbox:
            adopted = await Sandbox._reached(self._provider, self._context, sandbox_id)
            await adopted._life.take_room()
            try:
                self._refuse_closed()  # a close() meanwhile has not stopped this sandbox
            except ConfigurationError:
                adopted._life.leave_room()
                raise
            self._sandboxes.add(adopted._life)
            return adopted

        return Operation(run())

    def close(self) -> Operation[None]:
        """Stop every sandbox of this session, in parallel, and release the provider.

        All stops are attempted; failures are raised together as one ExceptionGroup, and closing
        again retries them. Cancelling this operation only stops waiting for it. In a forked child
        it does nothing.
        """
        _loop.refuse_trio()
        self._closed = True
        return start_detached(self._close, ended=not self._sandboxes)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        name_dropped(lambda life: life.context.lives is self._sandboxes, kind)
        try:
            self.close().result()
        except KeyboardInterrupt:
            _exit.abandon()
            raise

    def __await__(self) -> NoReturn:
        """Raise ConfigurationError: there is nothing to wait for."""
        raise ConfigurationError(
            "a session is made at once: leave out 'await', as in async with Session() as session:"
        )

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        name_dropped(lambda life: life.context.lives is self._sandboxes, kind)
        await self.close()

    def _open(self) -> None:
        if self._pool.most:
            self._refuse_closed()
            _loop.get().call_soon_threadsafe(self._pool.open)

    def _last(self, sandbox: Sandbox, process: Process) -> Process:
        # If the deletion fails, the sandbox stays in _sandboxes: close() retries and raises.
        process._on_end(sandbox._life.stop)
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

        async def stop(sandbox: Lifecycle) -> None:
            try:
                if sandbox.spec.detach:
                    sandbox.leave_room()  # it lives on, and its end will not be noticed here
                    if sandbox.meter is not None:
                        await sandbox.meter.end()
                elif stopping := sandbox.stop():
                    await asyncio.shield(stopping)
            except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
                errors.append(error)
            else:
                self._sandboxes.discard(sandbox)

        self._reconciler.close()
        self._pool.close()
        for attached in tuple(self._context.attached):
            attached.cancel()
        async with anyio.create_task_group() as group:
            for sandbox in list(self._sandboxes):
                group.start_soon(stop, sandbox)
        await self._pool.settle()
        for attached in tuple(self._context.attached):
            await attached.undo()
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

    def _begin(self, sandbox: Lifecycle) -> None:
        if self._closed:
            sandbox.stop()  # its error is then not logged as an unread failure
        self._refuse_closed()
        self._sandboxes.add(sandbox)
        if self._sweep is None and self._provider.on_this_machine:
            self._sweep = Work(lambda: _cleanup.sweep_strays(self._provider))

    def _full(self) -> str:
        lives = [life for life in tuple(self._context.lives) if life.context.counted]
        lives = [life for life in lives if life.state not in WITHOUT_ROOM]
        lives.sort(key=lambda life: life.since)
        names = [life.describe() for life in lives[:_NAMED]]
        if len(lives) > _NAMED:
            names.append(f"{len(lives) - _NAMED} more")
        has = f"this session has {len(lives)}"
        own = f"{has}: {', '.join(names)}; stop() some of them" if lives else has
        return f"{self._limiter.describe()}; {own}"

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
        return dataclasses.replace(spec, tags={**spec.tags, **marks}, egress=None)

    @functools.cached_property
    def _python_spec(self) -> SandboxSpec:
        """The spec of a `run_python` without options; building and checking one takes as long as a call."""
        default = Interpreter(preload=PRELOAD)
        return self._spec if self._spec.interpreter else self.sandbox(interpreter=default).spec

    def _refuse_reuse(self, spec: SandboxSpec) -> None:
        if spec.reuse == "reset" and not self._pool.most:
            raise ConfigurationError("reuse='reset' needs a pool: make the Session with pool=")

    def _refuse_closed(self) -> None:
        _forks.refuse(self._pid, f"session {self.id}", "make a new Session after a fork")
        if self._closed:
            raise ConfigurationError(f"session {self.id} is closed; make a new Session")


Sandbox._session = Session

_owner_pids: "weakref.WeakKeyDictionary[Provider, int]" = weakref.WeakKeyDictionary()
"""The pid of the process that owns each provider's connections."""
