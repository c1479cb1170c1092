"""Calls Daytona with its generated clients, a deadline for each call, and sandboxkit's errors.

Unlike the SDK's facade, the generated clients make one request per call: they do not retry, hold no
event socket, and read no dotenv file.
"""

import os
from typing import Any, ClassVar

import aiohttp
from daytona_api_client_async import ApiClient, Configuration, SandboxApi, SnapshotsApi
from daytona_api_client_async.exceptions import ApiException
from daytona_toolbox_api_client_async import ApiClient as ToolboxClient
from daytona_toolbox_api_client_async import Configuration as ToolboxConfiguration
from daytona_toolbox_api_client_async import ProcessApi
from daytona_toolbox_api_client_async.exceptions import ApiException as ToolboxException

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.providers._hosted.account import VendorAccount, check_address
from sandboxkit.providers.daytona._errors import KEY_VARIABLE, NAME, handshake_error, status_error

_DEFAULT_URL = "https://app.daytona.io/api"
_CONNECTIONS = 250


class DaytonaAccount(VendorAccount):
    """The account that DAYTONA_API_KEY names, at DAYTONA_API_URL."""

    name: ClassVar = NAME
    addresses: ClassVar = "DAYTONA_API_URL"
    refusals: ClassVar = (ApiException, ToolboxException, aiohttp.WSServerHandshakeError)
    unreachable: ClassVar = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
    broken: ClassVar = (aiohttp.ClientError, OSError)

    def __init__(self, api_key: str | None, timeout: float) -> None:
        super().__init__(timeout)
        self._api_key = api_key
        self._client: ApiClient | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """The URL of the API."""
        return os.environ.get("DAYTONA_API_URL", "") or _DEFAULT_URL

    @property
    def target(self) -> str | None:
        """The region that DAYTONA_TARGET names."""
        return os.environ.get("DAYTONA_TARGET") or None

    def check(self) -> None:
        """Raise ConfigurationError when no call could succeed."""
        variable, credential = self._credential()
        where = "keys are made on the dashboard of app.daytona.io"
        self.check_key(variable, credential, where)
        if variable != KEY_VARIABLE and not os.environ.get("DAYTONA_ORGANIZATION_ID"):
            raise ConfigurationError("DAYTONA_JWT_TOKEN needs DAYTONA_ORGANIZATION_ID beside it")
        check_address("DAYTONA_API_URL", self.url)

    def sandboxes(self) -> SandboxApi:
        """Return the client for sandboxes."""
        return SandboxApi(self._open())

    def snapshots(self) -> SnapshotsApi:
        """Return the client for snapshots."""
        return SnapshotsApi(self._open())

    def headers(self) -> dict[str, str]:
        """Return the authentication headers. Raises ConfigurationError without credentials."""
        self.check()
        variable, credential = self._credential()
        headers = {"Authorization": f"Bearer {credential}"}
        if variable != KEY_VARIABLE:
            headers["X-Daytona-Organization-ID"] = os.environ["DAYTONA_ORGANIZATION_ID"]
        return headers

    def toolbox(self, url: str) -> ProcessApi:
        """Return the client for the processes of the sandbox whose toolbox is at `url`."""
        client = ToolboxClient(ToolboxConfiguration(host=url))
        client.default_headers.update(self.headers())
        client.rest_client.pool_manager = self.http()
        return ProcessApi(client)

    def http(self) -> aiohttp.ClientSession:
        """Return the connection pool, which all clients share."""
        session = self._open().rest_client.pool_manager
        assert session is not None
        return session

    # Any: any of `refusals`.
    def refused(self, error: Any, what: str, sandbox_id: str | None) -> SandboxError:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        if isinstance(error, aiohttp.WSServerHandshakeError):
            status, reason = error.status, error.message
            return handshake_error(status, reason, headers, what=what, sandbox_id=sandbox_id)
        status = error.status or 500
        return status_error(status, error.body, headers, what=what, sandbox_id=sandbox_id)

    def identity(self) -> str:
        return f"{self.url} {self.headers()}"

    async def aclose(self) -> None:
        """Close the connections. Later calls raise ConfigurationError."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()  # type: ignore[no-untyped-call]  # the generated code has no types

    def _open(self) -> ApiClient:
        if self._closed:
            raise ConfigurationError("this provider is closed; make a new DaytonaProvider")
        if self._client is None:
            headers = self.headers()
            self._client = ApiClient(Configuration(host=self.url))
            self._client.default_headers.update(headers)
            self._client.rest_client.pool_manager = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS), trust_env=True
            )
        return self._client

    def _credential(self) -> tuple[str, str]:
        key = self._api_key or os.environ.get(KEY_VARIABLE, "")
        token = os.environ.get("DAYTONA_JWT_TOKEN", "")
        return ("DAYTONA_JWT_TOKEN", token) if token and not key else (KEY_VARIABLE, key)
