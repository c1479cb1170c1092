"""Metrics and spans say what sandboxes did, to OpenTelemetry's own SDK."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    Operation,
    SandboxFileNotFoundError,
    SandboxTerminatedError,
    Session,
    SnapshotNotFoundError,
    telemetry,
)
from sandboxkit.provider import FirstCommand
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import SandboxSpec

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 120.0
Point = tuple[dict[str, object], float]


class Collector:
    """OpenTelemetry's SDK, which keeps everything in memory."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self._reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))

    def enable(self, *, tags: tuple[str, ...] = (), traceparent: bool = False) -> None:
        telemetry.enable(
            tags=tags,
            traceparent=traceparent,
            meter_provider=self.meters,
            tracer_provider=self.tracers,
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [each for each in self._exporter.get_finished_spans() if each.name == name]

    # Any: what OpenTelemetry takes.
    def only(self, name: str) -> tuple[ReadableSpan, dict[str, Any]]:
        """The only span of the name, with its attributes."""
        (span,) = self.spans(name)
        return span, dict(span.attributes or {})

    def metrics(self) -> dict[str, list[Point]]:
        """The points of each metric: the sum or count, with its attributes."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", 0)))
                for point in metric.data.data_points
            ]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    telemetry.disable()
    collector.tracers.shutdown()
    collector.meters.shutdown()


def test_each_operation_is_a_span_of_its_callers_trace(collector: Collector) -> None:
    collector.enable()
    tracer = collector.tracers.get_tracer("a test")
    rollout = tracer.start_as_current_span("a rollout")
    with Session("local") as session, rollout as outer, session.sandbox() as sandbox:
        sandbox.exec(["sh", "-c", "exit 3"]).result(_SECONDS)
        sandbox.write_file("/tmp/x", b"1").result(_SECONDS)
        sandbox.list_dir("/tmp").result(_SECONDS)
    parent = outer.get_span_context()
    for name in ("create", "exec", "write_file", "list_dir", "delete"):
        span, attributes = collector.only(f"sandboxkit {name}")
        assert span.parent is not None
        assert (span.parent.span_id, span.parent.trace_id) == (parent.span_id, parent.trace_id)
        assert attributes["sandboxkit.sandbox.id"] == sandbox.id
        assert attributes["sandboxkit.provider"] == "local"
        assert span.status.status_code is StatusCode.UNSET
    _, command = collector.only("sandboxkit exec")
    assert (command["process.executable.name"], command["process.exit.code"]) == ("sh", 3)
    assert "exit 3" not in str(command)


def test_an_error_is_the_spans(collector: Collector) -> None:
    collector.enable()
    with Session("local") as session, session.sandbox() as sandbox:
        with pytest.raises(CommandStartError):
            sandbox.exec(["/no/such/program"]).result(_SECONDS)
        with pytest.raises(SandboxFileNotFoundError):
            sandbox.read_file("/no/such/file").result(_SECONDS)
    for name in ("exec", "read_file"):
        span, _ = collector.only(f"sandboxkit {name}")
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]


def test_a_start_that_fails_has_its_error(collector: Collector) -> None:
    collector.enable()
    with Session(FakeProvider(), snapshot="none") as session, pytest.raises(SnapshotNotFoundError):
        session.run(["true"]).result(_SECONDS)
    (start,) = collector.metrics()["sandboxkit.sandbox.starts"]
    assert start[0]["sandboxkit.outcome"] == "SnapshotNotFoundError"
    assert "sandboxkit.sandbox.alive" not in collector.metrics()


class SelfCallingProvider(FakeProvider):
    """A provider that uses its own calls."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        box = await super().create(spec, first)
        await box.write_file("/tmp/own", b"", mode=None)
        return box


@pytest.mark.anyio
async def test_sessions_of_one_provider_count_once_in_their_coroutines_trace(
    collector: Collector,
) -> None:
    collector.enable()
    tracer, provider = collector.tracers.get_tracer("a test"), SelfCallingProvider()
    traces: list[int] = []
    for _ in range(2):
        with tracer.start_as_current_span("a rollout") as outer:
            traces.append(outer.get_span_context().trace_id)
            async with Session(provider) as session:
                await session.run(["true"])
    ((_, starts),) = collector.metrics()["sandboxkit.sandbox.starts"]
    assert (starts, len(collector.spans("sandboxkit create"))) == (2, 2)
    assert collector.spans("sandboxkit write_file") == [], "what a provider calls of its own"
    contexts = [each.context for each in collector.spans("sandboxkit exec")]
    assert [each and each.trace_id for each in contexts] == traces


def test_a_download_is_a_span_from_its_first_piece_to_its_last(
    collector: Collector, tmp_path: Path
) -> None:
    collector.enable()
    with Session("local") as session, session.sandbox() as sandbox:
        sandbox.write_file("/tmp/folder/x", b"1" * 100_000).result(_SECONDS)
        sandbox.download("/tmp/folder", tmp_path / "here").result(_SECONDS)
    _, attributes = collector.only("sandboxkit get_archive")
    assert attributes["file.path"] == "/tmp/folder"
    assert (tmp_path / "here" / "x").stat().st_size == 100_000


def test_the_trace_goes_into_the_sandbox_on_request(collector: Collector) -> None:
    show = ["sh", "-c", 'printf %s "$TRACEPARENT"']
    for traceparent in (False, True):
        collector.enable(traceparent=traceparent)
        with Session("local") as session:
            seen = session.run(show).result(_SECONDS).stdout
            given = session.sandbox().exec(show, env={"TRACEPARENT": "mine"})
            assert given.result(_SECONDS).stdout == "mine"
        if not traceparent:
            assert seen == ""
    commands = [span.context for span in collector.spans("sandboxkit exec") if span.context]
    of_span = {f"00-{each.trace_id:032x}-{each.span_id:016x}" for each in commands}
    assert re.fullmatch(r"(00-\w{32}-\w{16})-\w\w", seen)
    assert seen[:-3] in of_span


def test_metrics_count_starts_ends_and_what_is_alive(collector: Collector) -> None:
    collector.enable(tags=("run",))
    of = {"sandboxkit.provider": "local", "sandboxkit.tag.run": "42"}
    with Session("local", tags=["run:42", "rollout:7"], max_concurrency=1) as session:
        with session.sandbox() as sandbox:
            sandbox.exec(["true"]).result(_SECONDS)
            waiting = session.sandbox().start()
            assert collector.metrics()["sandboxkit.sandbox.alive"] == [(of, 1)]
        killed = waiting.result(_SECONDS)
        Operation(session.provider.box(str(killed.id)).delete()).result(_SECONDS)
    metrics = collector.metrics()
    started = {**of, "sandboxkit.outcome": "started"}
    assert metrics["sandboxkit.sandbox.starts"] == [(started, 2)]
    assert metrics["sandboxkit.sandbox.start.duration"] == [(started, 2)]
    assert metrics["sandboxkit.room.wait"] == [(of, 2)]
    assert metrics["sandboxkit.sandbox.alive"] == [(of, 0)]
    assert metrics["sandboxkit.sandbox.ends"] == [({**of, "sandboxkit.reason": "stopped"}, 2)]
    assert metrics["sandboxkit.command.duration"] == [({**of, "sandboxkit.ending": "exited"}, 1)]


def test_an_end_has_its_reason(collector: Collector) -> None:
    collector.enable()
    with Session("local") as session:
        sandbox = session.sandbox().start().result(_SECONDS)
        process = sandbox.exec(["sleep", "600"])
        sandbox.renew(0.5).result(_SECONDS)
        with pytest.raises(SandboxTerminatedError):
            process.result(_SECONDS)
    (end,) = collector.metrics()["sandboxkit.sandbox.ends"]
    assert end == ({"sandboxkit.provider": "local", "sandboxkit.reason": "ended"}, 1)


def test_without_enable_no_provider_is_changed_and_opentelemetry_is_not_imported() -> None:
    code = """if True:
        import sys
        from sandboxkit import Session
        from sandboxkit.testing import FakeProvider
        provider = FakeProvider()
        before = set(vars(provider))
        Session(provider).run(["true"]).result()
        print(set(vars(provider)) - before, [each for each in sys.modules if "opentelemetry" in each])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() []\n"


def test_tags_are_a_list_of_keys() -> None:
    with pytest.raises(ConfigurationError, match=r"give a list of keys, such as \['run'\]"):
        telemetry.enable(tags="run")
    assert telemetry.active() is None


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(collector: Collector) -> None:
    collector.enable()
    with Session(FakeProvider()) as session:
        session.run(["true"]).result(_SECONDS)
    metrics = collector.metrics()
    there: set[str] = set()
    for name in metrics:  # as Prometheus names what comes from OpenTelemetry
        base = name.replace(".", "_")
        if name.endswith(("duration", "wait")):
            there |= {f"{base}_seconds_{part}" for part in ("bucket", "count", "sum")}
        else:
            there.add(base if name.endswith("alive") else f"{base}_total")
    labels = {
        key.replace(".", "_") for points in metrics.values() for of, _ in points for key in of
    }
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    every = "\n".join(queries)
    asked = set(re.findall(r"sandboxkit_(?:sandbox|room|command)_\w+", every))
    assert asked <= there
    assert len(asked) == 6
    grouped = {
        label.strip() for part in re.findall(r"by \(([^)]*)\)", every) for label in part.split(",")
    }
    assert grouped | set(re.findall(r"(\w+)=~", every)) <= labels | {"le"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
