"""Admission control: limits the work that runs or waits, for the service and for each client."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._tokens import Token

RETRY_AFTER = 5
"""Seconds after which a client may retry a request for which there was no room, or no infrastructure."""


class BusyError(Exception):
    """The service or a client's quota is full."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which a retry may succeed."""


class Admission:
    """Counts the units of work (submissions, programs and commands) that were admitted and have not ended.

    `capacity` is their maximum number. Each of `clients` always has room for its share of it, whatever the others
    have sent.
    """

    def __init__(self, capacity: int, clients: int = 1) -> None:
        self.capacity, self._share = capacity, capacity // max(1, clients)
        self.admitted = 0
        self._of: Counter[str] = Counter()

    def enter(self, client: Token, units: int) -> None:
        """Admit `units` of work. Raises BusyError if that would exceed the capacity or the client's quota.

        A request that is larger than the capacity is admitted while nothing else is, because it would never fit
        otherwise. Raises ConfigurationError for one that is larger than the client's quota.
        """
        if client.quota is not None and units > client.quota:
            raise ConfigurationError(
                f"the request has {units} submissions, more than the quota of {client.name!r}, {client.quota}: "
                "send fewer at a time"
            )
        if self._of[client.name] + units > self._share:
            self._check("the service", self.admitted, units, self.capacity)
        if client.quota is not None:
            self._check(f"the quota of {client.name!r}", self._of[client.name], units, client.quota)
        self.admitted += units
        self._of[client.name] += units

    @contextlib.contextmanager
    def unit(self, client: Token) -> Iterator[None]:
        """Admit one unit until the end of the context. Raises BusyError."""
        self.enter(client, 1)
        try:
            yield
        finally:
            self.leave(client, 1)

    def leave(self, client: Token, units: int) -> None:
        """Release units that `enter` admitted."""
        self.admitted -= units
        self._of[client.name] -= units

    def _check(self, whose: str, used: int, units: int, bound: int) -> None:
        if used and used + units > bound:
            raise BusyError(
                f"{whose} is full: {used} of {bound} units of work are in progress, and this request "
                f"has {units}",
                RETRY_AFTER,
            )
