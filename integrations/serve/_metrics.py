"""Prometheus metrics of one replica, and the ASGI middleware that records its requests."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class ServiceMetrics:
    """The metrics of one application, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "sandboxkit_requests", "Requests by path and status.", ("path", "status"),
            registry=self._registry,
        )  # fmt: skip
        self.outcomes = Counter(
            "sandboxkit_outcomes", "Graded submissions and programs by client and outcome.",
            ("client", "outcome"), registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "sandboxkit_request_seconds", "Duration of requests by path.", ("path",),
            registry=self._registry, buckets=_SECONDS,
        )  # fmt: skip
        self.admitted = Gauge(
            "sandboxkit_admitted", "Submissions, programs and commands that run or wait.",
            registry=self._registry,
        )  # fmt: skip
        self.sandboxes = Gauge(
            "sandboxkit_sandboxes", "Sandboxes of the session's pool by state.", ("state",),
            registry=self._registry,
        )  # fmt: skip

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        page: bytes = generate_latest(self._registry)
        return page


class RecordRequests:
    """Records the path, status and duration of each request."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), "none"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # A path without a route must not become a label of its own.
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - begun)
