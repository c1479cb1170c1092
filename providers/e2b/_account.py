"""Calls E2B's control API with one client and a time limit per call, and raises sandboxkit's errors."""

import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import httpx
from e2b import ConnectionConfig
from e2b.api import AsyncApiClient
from e2b.api.client.types import Response
from e2b.api.client_async import get_api_client
from e2b.sandbox_domains import SUPPORTED_SANDBOX_DOMAINS
from pyqwest import ReadError, RemoteProtocolError, WriteError

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.providers._hosted.account import VendorAccount, check_address
from sandboxkit.providers.e2b._answers import KEY_VARIABLE, NAME, message_of, of_api

# Any: the generated functions and their models have no common type.
Endpoint = Callable[..., Awaitable[Response[Any]]]


class StatusError(Exception):
    """An HTTP error response, raised before the SDK drops its headers or fails to parse it.

    It is the `__cause__` of the SandboxError that `E2BAccount.call` raises.
    """

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response

    @property
    def message(self) -> str:
        """The message in the body, if the server sent one as E2B does; else the body."""
        return message_of(self.response.content)[0] or self.response.text.strip()


class E2BAccount(VendorAccount):
    """The account that E2B_API_KEY names, at E2B_DOMAIN or E2B_API_URL."""

    name: ClassVar = NAME
    addresses: ClassVar = "E2B_DOMAIN, E2B_API_URL, E2B_SANDBOX_URL"
    refusals: ClassVar = (StatusError,)
    unreachable: ClassVar = (
        *(httpx.ConnectError, httpx.InvalidURL, httpx.UnsupportedProtocol),
        ConnectionError,  # of the client for uploads
    )
    broken: ClassVar = (
        *(httpx.HTTPError, httpx.InvalidURL, OSError),
        *(ReadError, RemoteProtocolError, WriteError),  # of the client for uploads
    )

    def __init__(self, api_key: str | None, timeout: float) -> None:
        super().__init__(timeout)
        self._api_key = api_key
        self.streams: bool | None = None
        """Whether streamed input reaches sandboxes, according to the last probe; None if unknown."""
        self._client: AsyncApiClient | None = None

    def check(self) -> None:
        """Raise ConfigurationError if the key or an address is missing or malformed."""
        self.check_key(KEY_VARIABLE, self._key(), "the key is on the dashboard of e2b.dev")
        for variable in ("E2B_API_URL", "E2B_SANDBOX_URL"):
            if value := os.environ.get(variable):
                check_address(variable, value)
        domain = os.environ.get("E2B_DOMAIN", "")
        if domain and not re.fullmatch(r"[^/:\s]+(:[0-9]+)?", domain):
            raise ConfigurationError(f"E2B_DOMAIN={domain!r} is not a domain such as e2b.app")
        if not (domain or self.sandbox_url or self.is_e2bs):
            raise ConfigurationError(
                f"E2B_API_URL={os.environ['E2B_API_URL']!r} is not E2B's own server, but sandboxes would be "
                "sought at E2B's: set E2B_SANDBOX_URL as well, to the address at which your server forwards "
                "requests to sandboxes, or E2B_DOMAIN if it has a domain with a wildcard"
            )

    @property
    def sandbox_url(self) -> str | None:
        """The one address of all sandboxes in E2B_SANDBOX_URL, where headers name the sandbox; else None."""
        return os.environ.get("E2B_SANDBOX_URL") or None

    @property
    def is_e2bs(self) -> bool:
        """Whether the API is E2B's own, and not a server of somebody else."""
        host = ConnectionConfig(debug=False).api_url.split("/")[2].partition(":")[0]
        return any(f".{host}".endswith(f".{domain}") for domain in SUPPORTED_SANDBOX_DOMAINS)

    def config(self, sandbox_headers: dict[str, str] | None = None) -> ConnectionConfig:
        """Return the SDK's configuration for E2B, or with `sandbox_headers` for one sandbox.

        Raises ConfigurationError, as `check` does.
        """
        self.check()
        return ConnectionConfig(
            api_key=self._key(),
            request_timeout=self.timeout,
            debug=False,
            extra_sandbox_headers=sandbox_headers,
            retries=0,  # our callers decide about retries
        )

    async def call(
        self,
        endpoint: Endpoint,
        *path: str,
        what: str,
        sandbox_id: str | None = None,
        done: bool = False,
        slow: bool = False,
        **arguments: Any,
    ) -> Response[Any]:
        """Call a generated endpoint function and return its successful response.

        The response must have a body, or with `done` must have none. A `slow` call may take the whole
        `timeout`. Raises what `bounded` does.
        """
        if self._client is None:
            self._client = get_api_client(self.config())
            self._client.get_async_httpx_client().event_hooks["response"].append(_raise_status)
        answer = endpoint(*path, client=self._client, **arguments)
        return await self.bounded(
            _complete(answer, done),
            what=what,
            sandbox_id=sandbox_id,
            seconds=self.timeout if slow else None,
        )

    # Any: `refusals` has one class alone.
    def refused(self, error: Any, what: str, sandbox_id: str | None) -> SandboxError:
        response: httpx.Response = error.response
        return of_api(
            response.status_code,
            response.headers,
            response.content,
            what=what,
            route=f"{response.request.method} {response.request.url.path}",
            sandbox_id=sandbox_id,
        )

    def identity(self) -> str:
        config = self.config()
        return f"{config.api_url} {config.api_key}"

    async def aclose(self) -> None:
        """Close the client; the next call opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.get_async_httpx_client().aclose()

    def _key(self) -> str:
        return self._api_key or os.environ.get(KEY_VARIABLE, "")


async def _complete(answer: Awaitable[Response[Any]], done: bool) -> Response[Any]:
    response = await answer
    if bool(response.content) if done else response.parsed is None:
        raise ValueError(f"{response.status_code} with {len(response.content)} bytes")
    return response


async def _raise_status(response: httpx.Response) -> None:
    if response.status_code >= 300:
        await response.aread()
        raise StatusError(response)
