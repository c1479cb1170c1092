"""How fast a session starts sandboxes, and whether it is as fast again after a fault."""

import concurrent.futures
import time

from sandboxkit import SandboxError, Session

__all__ = ["BACK_SECONDS", "Pace"]

BACK_SECONDS = 30.0
"""Within which a session is as fast as before, once a fault has healed."""
_RUNS = 4
_PATIENCE = 60.0
_SLOWER, _SLACK = 3.0, 6.0
"""The same runs may take so many times as long as before, and so many seconds more: other work goes on
beside them."""


class Pace:
    """Compares the time for a few `run(["true"])` with what it was at first, without faults."""

    def __init__(self, session: Session) -> None:
        """Measure twice; the first time also warms up. Raises what a run raises."""
        self._session = session
        _measure(session, _PATIENCE)
        self.usual = 0.0
        """Seconds that the runs took when nothing was wrong."""
        self.mark()

    def mark(self) -> None:
        """Measure again, with nothing wrong: other work on the machine may be more or less by now."""
        self.usual = _measure(self._session, _PATIENCE)

    @property
    def allowed(self) -> float:
        """Seconds that the runs may take and be as fast as before."""
        return _SLOWER * self.usual + _SLACK

    def back(self) -> tuple[float, str]:
        """Seconds until the session was as fast as before, and "", or else what was wrong."""
        began, wrong = time.monotonic(), ""
        while (passed := time.monotonic() - began) < BACK_SECONDS:
            try:
                took = _measure(self._session, BACK_SECONDS + self.allowed - passed)
            except (SandboxError, concurrent.futures.TimeoutError) as error:
                wrong = repr(error)
                continue
            if took <= self.allowed:
                return time.monotonic() - began - took, ""
            wrong = f"{_RUNS} runs took {took:.1f} s, {self.allowed:.1f} s are allowed"
        return passed, f"not as fast as before {BACK_SECONDS:g} s after the fault: {wrong}"


def _measure(session: Session, patience: float) -> float:
    began = time.monotonic()
    runs = [session.run(["true"]) for _ in range(_RUNS)]
    try:
        for run in runs:
            run.result(max(0.0, began + patience - time.monotonic()))
    finally:
        for run in runs:
            run.cancel()
    return time.monotonic() - began
