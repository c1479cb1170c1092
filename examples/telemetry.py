"""Traces and metrics: an agent's rollout as one trace, down to the commands in its sandbox.

The collector is a small server on loopback. For a real one leave it out, and set OTEL_EXPORTER_OTLP_ENDPOINT.
"""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sandboxkit import Session, telemetry

spans: Counter[tuple[str, bytes]] = Counter()
metrics: set[str] = set()


class Collector(BaseHTTPRequestHandler):
    """Keeps the names of what arrives."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            for traced in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in traced.scope_spans:
                    spans.update((span.name, span.trace_id) for span in scope.spans)
        else:
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope_metrics in measured.scope_metrics:
                    metrics.update(metric.name for metric in scope_metrics.metrics)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{collector.server_port}/v1"

tracers = TracerProvider()
tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/traces")))
meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{address}/metrics"))])
telemetry.enable(tags=["run"], traceparent=True, tracer_provider=tracers, meter_provider=meters)

with (
    Session(tags="run:42") as session,
    tracers.get_tracer("agent").start_as_current_span("rollout"),
    session.sandbox() as sandbox,
):
    sandbox.write_file("/workspace/answer.py", b"print(6 * 7)\n").result()
    print(sandbox.exec(["python3", "/workspace/answer.py"]).result().stdout, end="")
    shown = sandbox.exec(["sh", "-c", "echo $TRACEPARENT"]).result().stdout

tracers.shutdown()
meters.shutdown()
collector.shutdown()
collector.server_close()

traces = {trace for _, trace in spans}
print("one trace:", len(traces) == 1)
print("known in the sandbox:", shown.split("-")[1] in {trace.hex() for trace in traces})
for name, number in sorted(Counter(name for name, _ in spans.elements()).items()):
    print(f"{number} x {name}")
print(*sorted(metrics), sep="\n")
