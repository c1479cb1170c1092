"""A proxy that breaks connections on purpose, for the tests of whoever writes a provider."""

from sandboxkit.testing.faults._plan import (
    Direction,
    Drop,
    Fault,
    Half,
    HttpAnswer,
    Late,
    Plan,
    Request,
    Reset,
    SeededPlan,
    Stall,
    too_many_requests,
)
from sandboxkit.testing.faults._proxy import FaultProxy

__all__ = [
    "Direction",
    "Drop",
    "Fault",
    "FaultProxy",
    "Half",
    "HttpAnswer",
    "Late",
    "Plan",
    "Request",
    "Reset",
    "SeededPlan",
    "Stall",
    "too_many_requests",
]
