"""The base of a vendor's account: calls with a time limit, whose failures are sandboxkit's errors.

All vendor calls have a time limit of ours, because the vendors' own limits are long or missing.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import ClassVar, TypeVar

import anyio

from sandboxkit.errors import ConfigurationError, ProviderUnavailableError, SandboxError
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules
from sandboxkit.providers._hosted.ambiguous import SILENCE, AmbiguousError, SilenceError

_T = TypeVar("_T")
_Exceptions = tuple[type[Exception], ...]
READING = (ValueError, LookupError, TypeError, AttributeError)
"""The exceptions that parsing a response of an unexpected form raises."""


class VendorAccount(ABC):
    """An account at a vendor, and the connections that its calls share."""

    name: ClassVar[str]
    """The provider's name."""
    addresses: ClassVar[str] = ""
    """The variables that hold the vendor's addresses, for error messages."""
    refusals: ClassVar[_Exceptions]
    """The exceptions of the vendor's client for an answer that is no success."""
    unreachable: ClassVar[_Exceptions] = ()
    """The exceptions of its client for a call that was never sent."""
    broken: ClassVar[_Exceptions] = (OSError,)
    """The exceptions of its client for a call that got no whole answer."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        """Time limit (s) of a creation and of other slow calls."""
        self.silence = min(timeout, SILENCE)
        """Time limit (s) of any other call."""

    def check(self) -> None:
        """Raise ConfigurationError when no call could succeed."""

    @abstractmethod
    def refused(self, error: Exception, what: str, sandbox_id: str | None) -> SandboxError:
        """Return the error for one of `refusals`: an AmbiguousError if the call may have been carried out.

        `what` is the call as a verb phrase, and `sandbox_id` the sandbox that it concerned.
        """

    def identity(self) -> str:
        """Return a string that identifies the account, for records of its images; it may contain credentials."""
        return self.name

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections. Idempotent."""

    async def bounded(
        self,
        call: Awaitable[_T],
        *,
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> _T:
        """Await a vendor's call for at most `seconds`, by default `silence`.

        Raises sandboxkit's errors, AmbiguousError if the call may have been carried out.
        """
        seconds = self.silence if seconds is None else seconds
        failures = self.broken + READING
        try:
            with anyio.move_on_after(seconds):
                return await call
        except SandboxError:  # some are also an OSError or a ValueError
            raise
        except self.refusals as error:
            raise self.refused(error, what, sandbox_id) from error
        except failures as error:
            raise self._unanswered(error, what) from error
        raise SilenceError(
            f"{self.name} did not {what} within {seconds:g} s; check the network and the endpoint, or give the "
            "provider a longer timeout"
        )

    def _unanswered(self, error: Exception, what: str) -> SandboxError:
        """Return the error for a call without a usable response, because the vendor's client raised `error`."""
        addresses = self.addresses
        rules = (
            ErrorRule(
                self.unreachable, ProviderUnavailableError, f"check the network and {addresses}"
            ),
            ErrorRule(self.broken, AmbiguousError, "the connection broke: try again"),
            ErrorRule(
                (),
                AmbiguousError,
                f"this is not {self.name}'s protocol: check {addresses} and any proxy",
            ),
        )
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        failure = Failure(f"{self.name} could not {what}: {reason}", reason, {*type(error).__mro__})
        return apply_rules(failure, rules)

    def check_key(self, variable: str, key: str, where: str) -> None:
        """Raise ConfigurationError for a missing or malformed key; `where` says how one is made."""
        if not key:
            raise ConfigurationError(
                f"provider {self.name!r} needs an API key: set {variable} ({where})"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigurationError(
                f"{variable} is not a key: it has spaces, line breaks or other characters that keys do not "
                "have"
            )


def check_address(variable: str, url: str) -> None:
    """Raise ConfigurationError for a variable that does not hold the URL of a server."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{variable}={url!r} is not an http or https address")
