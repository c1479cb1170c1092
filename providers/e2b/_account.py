"""Calls to E2B's control API: one client, a deadline for each call, and its errors as ours."""

import os
from collections.abc import Awaitable, Callable
from json import JSONDecodeError, loads
from typing import Any

import httpx
from e2b import ConnectionConfig
from e2b.api import AsyncApiClient
from e2b.api.client.types import Response
from e2b.api.client_async import get_api_client

from sandboxkit.errors import ConfigurationError, ProviderUnavailableError, SandboxError
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError, bounded
from sandboxkit.providers._hosted.http_errors import from_status

__all__ = ["KEY_VARIABLE", "NAME", "Account"]

NAME = "e2b"
KEY_VARIABLE = "E2B_API_KEY"

# Any: the generated functions and their models have no common type.
Endpoint = Callable[..., Awaitable[Response[Any]]]


class Account:
    """The account that E2B_API_KEY names, at E2B_DOMAIN or E2B_API_URL."""

    def __init__(self, api_key: str | None, timeout: float) -> None:
        self._api_key = api_key
        self.timeout = timeout
        """Seconds that any one call may take."""
        self._client: AsyncApiClient | None = None

    def check(self) -> None:
        """Raise ConfigurationError when no call could succeed."""
        key = self._key()
        if not key:
            raise ConfigurationError(
                f"provider 'e2b' needs an API key: set {KEY_VARIABLE} (the key is on the "
                "dashboard of e2b.dev)",
                provider=NAME,
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigurationError(
                f"{KEY_VARIABLE} is not a key: it has spaces, line breaks or other characters "
                "that keys do not have",
                provider=NAME,
            )
        for variable in ("E2B_API_URL", "E2B_SANDBOX_URL"):
            value = os.environ.get(variable)
            if value and not value.startswith(("http://", "https://")):
                raise ConfigurationError(
                    f"{variable}={value!r} is not an http or https address", provider=NAME
                )
        domain = os.environ.get("E2B_DOMAIN", "")
        if any(character in domain for character in "/: "):
            raise ConfigurationError(
                f"E2B_DOMAIN={domain!r} is not a domain such as e2b.app", provider=NAME
            )

    def config(self, sandbox_headers: dict[str, str] | None = None) -> ConnectionConfig:
        """How to reach E2B; with `sandbox_headers`, one of its sandboxes."""
        self.check()
        return ConnectionConfig(
            api_key=self._key(),
            request_timeout=self.timeout,
            debug=False,
            extra_sandbox_headers=sandbox_headers,
            retries=0,  # whoever called us retries, or does not
        )

    async def call(
        self,
        endpoint: Endpoint,
        *path: str,
        what: str,
        sandbox_id: str | None = None,
        **arguments: Any,
    ) -> Response[Any]:
        """Call a generated endpoint function; the answer is a success.

        Raises sandboxkit's errors; OutcomeUnknownError where the call may have been carried out.
        """
        if self._client is None:
            self._client = get_api_client(self.config())
            self._client.get_async_httpx_client().event_hooks["response"].append(_raise_status)
        try:
            return await bounded(
                endpoint(*path, client=self._client, **arguments),
                self.timeout,
                provider=NAME,
                what=what,
                sandbox_id=sandbox_id,
            )
        except _StatusError as error:
            raise error.translated(what, sandbox_id) from None
        except (httpx.ConnectError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ProviderUnavailableError(
                f"e2b cannot be reached to {what}: {error or type(error).__name__}; check the "
                "network, E2B_DOMAIN and E2B_API_URL",
                provider=NAME,
                sandbox_id=sandbox_id,
            ) from error
        except (httpx.HTTPError, OSError) as error:
            raise OutcomeUnknownError(
                f"the connection to e2b broke while it was to {what}: "
                f"{error or type(error).__name__}; try again",
                provider=NAME,
                sandbox_id=sandbox_id,
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise OutcomeUnknownError(
                f"what answered to {what} does not speak E2B's protocol "
                f"({type(error).__name__}: {error}); check E2B_API_URL and any proxy",
                provider=NAME,
                sandbox_id=sandbox_id,
            ) from error

    async def aclose(self) -> None:
        """Close the client; the next call opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.get_async_httpx_client().aclose()

    def _key(self) -> str:
        return self._api_key or os.environ.get(KEY_VARIABLE, "")


class _StatusError(Exception):
    """An answer that is an error, taken before the SDK drops its headers or fails to read it."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def translated(self, what: str, sandbox_id: str | None) -> SandboxError:
        return from_status(
            self._response.status_code,
            _message(self._response),
            self._response.headers,
            provider=NAME,
            what=what,
            key_variable=KEY_VARIABLE,
            sandbox_id=sandbox_id,
        )


async def _raise_status(response: httpx.Response) -> None:
    if response.status_code >= 400:
        await response.aread()
        raise _StatusError(response)


def _message(response: httpx.Response) -> str:
    try:
        said = loads(response.content)
    except (JSONDecodeError, UnicodeDecodeError):
        return response.text
    return str(said.get("message", said)) if isinstance(said, dict) else str(said)
