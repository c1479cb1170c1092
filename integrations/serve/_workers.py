"""Work whose time grows with what a client sends runs in other processes, so that the service's loop stays free."""

import logging
import math
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations.serve._fair_room import FairRoom

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PROCESSES = 2
_SECONDS = 20.0
_NICE = 10
"""The priority of these processes: lower than the service's."""


class Workers:
    """Calls functions in other processes, two at a time and one more for each further client."""

    def __init__(self) -> None:
        self._room = FairRoom(_PROCESSES)
        self._limiter = CapacityLimiter(math.inf)  # the room is the limit

    # Any: whatever can be pickled.
    async def run(self, client: str, here: int, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns. With arguments of at most `here` bytes it runs at once.

        Raises ConfigurationError if it takes 20 s of processor time, or more memory than there is;
        ProviderUnavailableError if no process can be started.
        """
        try:
            if len(pickle.dumps(arguments)) <= here:
                return function(*arguments)
            async with self._room.place(client):
                return await to_process.run_sync(
                    _call, _SECONDS, function, arguments, cancellable=True, limiter=self._limiter
                )
        except RecursionError as error:
            raise ConfigurationError("the request is nested too deeply") from error
        except BrokenWorkerProcess as error:
            if error.args:  # it did not start
                raise ProviderUnavailableError(
                    f"no process could be started to read the request in ({error.__cause__!r}); a program that "
                    "serves needs `if __name__ == '__main__':`"
                ) from error
            _log.warning("a request of %s could not be read: %r", client, error.__cause__ or error)
            raise ConfigurationError(
                f"the request could not be read and checked in {_SECONDS:g} s of processor time: "
                "send less at a time"
            ) from error


# Any: as above.
def _call(seconds: float, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # a busy machine is not the client's fault
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
