"""A proxy that breaks connections on purpose, and the tests of that proxy."""

from tests.faults._plan import (
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
from tests.faults._proxy import FaultProxy

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
