"""Telemetry: wraps the calls of a provider object and of its boxes in spans, and counts its sandboxes."""

import functools
import os.path
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import SpanKind

from sandboxkit.errors import SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.provider import Box, FirstCommand, Provider
from sandboxkit.types import Command, Exit, SandboxSpec

if TYPE_CHECKING:
    from sandboxkit._lifecycle import Lifecycle

Attributes = dict[str, str]

_NAME = "sandboxkit"
_PATHS = ("read_file", "write_file", "put_archive", "list_dir", "stat", "remove")
_OTHERS = ("take_snapshot", "pause", "resume", "reset", "exec_each", "delete")
_inside: ContextVar[bool] = ContextVar("sandboxkit_inside", default=False)
"""Whether a wrapped call runs: what a provider calls of its own is no operation of the user's."""


class Telemetry:
    """The instruments, and the wrappers that use them. Used on the background loop, except `instrument`.

    Spans are children of the caller's, because the loop's tasks have the caller's context variables.
    """

    def __init__(
        self,
        tags: tuple[str, ...],
        traceparent: bool,
        meter_provider: metrics.MeterProvider | None,
        tracer_provider: trace.TracerProvider | None,
    ) -> None:
        self._tags, self._traceparent = tags, traceparent
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._starts = meter.create_counter(
            "sandboxkit.sandbox.starts", "{sandbox}", "Creations of sandboxes, by outcome."
        )
        self._start_seconds = meter.create_histogram(
            "sandboxkit.sandbox.start.duration", "s", "How long creations took."
        )
        self._room_seconds = meter.create_histogram(
            "sandboxkit.room.wait",
            "s",
            "How long starts waited for room, or for a sandbox of the pool.",
        )
        self._alive = meter.create_up_down_counter(
            "sandboxkit.sandbox.alive", "{sandbox}", "Sandboxes that exist."
        )
        self._ends = meter.create_counter(
            "sandboxkit.sandbox.ends", "{sandbox}", "Ends of sandboxes, by reason."
        )
        self._command_seconds = meter.create_histogram(
            "sandboxkit.command.duration", "s", "How long commands ran, by how they ended."
        )
        self._living: dict[str, Attributes] = {}
        """The metrics' attributes of each sandbox that exists, by its id."""
        self._instrumented: WeakSet[Provider] = WeakSet()
        self._instrumented_boxes: WeakSet[Box] = WeakSet()

    def instrument(self, provider: Provider) -> None:
        """Wrap the calls of this provider object, once."""
        if provider in self._instrumented:
            return
        self._instrumented.add(provider)
        provider.create = _outermost(  # type: ignore[method-assign]
            provider.create, functools.partial(self._created, provider, provider.create)
        )
        box = provider.box
        provider.box = lambda sandbox_id: self._boxed(box(sandbox_id))  # type: ignore[method-assign]

    def _boxed(self, box: Box) -> Box:
        """Wrap the calls of this box, once."""
        if box in self._instrumented_boxes:
            return box
        self._instrumented_boxes.add(box)
        wrappers: dict[str, Callable[..., Any]] = {  # Any: results of several calls
            "exec": self._executed,
            "run_python": self._executed,
            "get_archive": self._archived,
            "read_pieces": self._archived,
            **dict.fromkeys((*_PATHS, *_OTHERS), self._called),
        }
        for name, wrapper in wrappers.items():
            own = getattr(box, name)
            setattr(box, name, _outermost(own, functools.partial(wrapper, box, name, own)))
        return box

    def waited(self, life: "Lifecycle", seconds: float) -> None:
        """Note how long (s) a start waited for room."""
        self._room_seconds.record(seconds, self._of(life.provider, life.spec.tags))

    def _of(self, provider: Provider, tags: Mapping[str, str]) -> Attributes:
        named = {f"sandboxkit.tag.{key}": tags[key] for key in self._tags if key in tags}
        return {"sandboxkit.provider": provider.name, **named}

    @contextmanager
    def _span(
        self, provider: Provider, name: str, box: Box | None, **more: str
    ) -> Iterator[trace.Span]:
        attributes = {"sandboxkit.provider": provider.name, **more}
        if box is not None:
            attributes["sandboxkit.sandbox.id"] = box.id
        with self._tracer.start_as_current_span(
            f"sandboxkit {name}", kind=SpanKind.CLIENT, attributes=attributes
        ) as span:
            token = _inside.set(True)
            try:
                yield span
            except (SandboxNotFoundError, SandboxTerminatedError) as error:
                if box is not None:
                    self._ended(box.id, _reason(error))
                raise
            finally:
                _inside.reset(token)

    def _ended(self, sandbox_id: str, reason: str) -> None:
        attributes = self._living.pop(sandbox_id, None)
        if attributes is not None:
            self._alive.add(-1, attributes)
            self._ends.add(1, {**attributes, "sandboxkit.reason": reason})

    async def _created(
        self,
        provider: Provider,
        create: Callable[[SandboxSpec, FirstCommand | None], Awaitable[Box]],
        spec: SandboxSpec,
        first: FirstCommand | None = None,
    ) -> Box:
        if self._traceparent:  # the command's span, which it is to know, begins later
            first = None
        attributes, began, outcome = self._of(provider, spec.tags), time.monotonic(), "cancelled"
        try:
            with self._span(provider, "create", None) as span:
                box = self._boxed(await create(spec, first))
                span.set_attribute("sandboxkit.sandbox.id", box.id)
            outcome = "started"
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            counted = {**attributes, "sandboxkit.outcome": outcome}
            self._starts.add(1, counted)
            self._start_seconds.record(time.monotonic() - began, counted)
        self._living[box.id] = attributes
        self._alive.add(1, attributes)
        return box

    async def _executed(
        self,
        box: Box,
        name: str,
        run: Callable[..., Awaitable[Exit]],
        *given: Any,  # Any: `exec` gets a command, `run_python` code before it
    ) -> Exit:
        *code, command, output = given
        assert isinstance(command, Command)
        program = "python" if code else os.path.basename(command.argv[0])
        attributes = self._living.get(box.id) or self._of(box.provider, {})
        began, ending = time.monotonic(), "killed"
        try:
            with self._span(
                box.provider, name, box, **{"process.executable.name": program}
            ) as span:
                if self._traceparent:
                    command = replace(command, env={**_carried(), **command.env})
                end = await run(*code, command, output)
                ending = "exited" if end.ending is None else end.ending.value
                span.set_attribute("process.exit.code", end.status)
                span.set_attribute("sandboxkit.ending", ending)
                return end
        except Exception as error:
            ending = type(error).__name__
            raise
        finally:
            taken = {**attributes, "sandboxkit.ending": ending}
            self._command_seconds.record(time.monotonic() - began, taken)

    # Any: arguments and results of several calls.
    async def _called(
        self,
        box: Box,
        name: str,
        call: Callable[..., Awaitable[Any]],
        *given: Any,
        **more: Any,
    ) -> Any:
        about = {"file.path": str(given[0])} if name in _PATHS and given else {}
        with self._span(box.provider, name, box, **about):
            result = await call(*given, **more)
        if name == "delete":
            self._ended(box.id, "stopped")
        return result

    async def _archived(
        self,
        box: Box,
        name: str,
        archive: Callable[..., AsyncGenerator[bytes, None]],
        path: str,
        **options: int,
    ) -> AsyncGenerator[bytes, None]:
        attributes = {
            "sandboxkit.provider": box.provider.name,
            "sandboxkit.sandbox.id": box.id,
            "file.path": path,
        }
        # Not the current span: a generator runs in the contexts of its readers.
        span = self._tracer.start_span(
            f"sandboxkit {name}", kind=SpanKind.CLIENT, attributes=attributes
        )
        chunks = archive(path, **options)
        try:
            async for chunk in chunks:
                yield chunk
        except Exception as error:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR)
            raise
        finally:
            await chunks.aclose()
            span.end()


# Any: arguments and results of several calls.
def _outermost(own: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `own` within another wrapped call, and `wrapped` otherwise."""

    def call(*given: Any, **more: Any) -> Any:
        return (own if _inside.get() else wrapped)(*given, **more)

    return call


def _carried() -> dict[str, str]:
    """Return the current span as environment variables."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {
        key.upper(): value for key, value in carrier.items() if key in ("traceparent", "tracestate")
    }


def _reason(error: SandboxNotFoundError | SandboxTerminatedError) -> str:
    if isinstance(error, SandboxTerminatedError):
        if error.out_of_memory:
            return "out_of_memory"
        if error.by_command:
            return "by_command"
    return "ended"
