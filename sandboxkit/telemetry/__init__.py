"""Metrics and traces of sandboxes through OpenTelemetry's API, off unless `enable` is called."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sandboxkit import _distribution
from sandboxkit._calls import _arguments
from sandboxkit.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from sandboxkit.telemetry._telemetry import Telemetry

__all__ = ["active", "disable", "enable"]

_active: "Telemetry | None" = None


def enable(
    *,
    tags: Iterable[str] = (),
    traceparent: bool = False,
    meter_provider: "MeterProvider | None" = None,
    tracer_provider: "TracerProvider | None" = None,
) -> None:
    """Report what the sessions that are made from now on do, as metrics and spans.

    `tags` are the keys of tags that become attributes of the metrics; each further value makes further time
    series, so name only those with few values. With `traceparent` commands have the variables TRACEPARENT
    and TRACESTATE of their spans, unless they are given others; a command is then not sent along with its
    sandbox's start. The providers default to OpenTelemetry's global ones.
    Raises MissingExtraError without the package opentelemetry-api.
    """
    global _active
    if isinstance(tags, str):
        raise ConfigurationError(f"tags={tags!r}: give a list of keys, such as [{tags!r}]")
    _arguments.flag("traceparent", traceparent)
    try:
        from sandboxkit.telemetry._telemetry import Telemetry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise MissingExtraError(
            f"telemetry needs the package 'opentelemetry-api': {_distribution.install('otel')}"
        ) from error
    _active = Telemetry(tuple(tags), traceparent, meter_provider, tracer_provider)


def disable() -> None:
    """Report nothing of sessions that are made from now on with a provider that they make themselves."""
    global _active
    _active = None


def active() -> "Telemetry | None":
    """Return what `enable` made; None while nothing is reported."""
    return _active
