"""The SDK's client of a sandbox's daemon, changed to keep the error responses of proxies.

The SDK's client maps several HTTP statuses to one code and drops the headers. This loses the difference
between a refusal, after which nothing has run, and a response after which the outcome is unknown. The
changed client also uses the protocol's binary form, because the SDK's JSON carries data as base64.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectrpc.code import Code
from connectrpc.codec import proto_binary_codec
from e2b import ConnectionConfig
from e2b.api import proxy_to_config
from e2b.api.client_async import get_pyqwest_transport
from e2b.envd.client_shared import ENVD_RPC_COMPRESSION
from e2b.envd.interceptors import build_interceptors
from e2b.envd.process.process_connect import ProcessClient
from pyqwest import Client, Request, Response, Transport

_LONGEST = 1 << 16
_CODES = frozenset(code.value for code in Code)


@dataclass
class ProxyResponseError(Exception):
    """An HTTP error response from a proxy in front of the daemon: its body has no error code of the daemon.

    It is the `__cause__` of the ConnectError that the client raises.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _CheckedTransport:
    """A transport that raises ProxyResponseError for error responses that are not the daemon's."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def execute(self, request: Request) -> Response:
        response = await self._inner.execute(request)
        if response.status < 300:
            return response
        body = bytearray()
        async for chunk in response.content:
            body += bytes(chunk)
            if len(body) > _LONGEST:
                break
        if _is_the_daemons(body):
            return Response(status=response.status, headers=response.headers, content=bytes(body))
        headers = {name.lower(): value for name, value in response.headers.items()}
        raise ProxyResponseError(response.status, headers, bytes(body))


def process_client(url: str, config: ConnectionConfig) -> ProcessClient:
    """Return a client of the process service at `url`; it retries only requests that were never sent."""
    return ProcessClient(
        url,
        codec=proto_binary_codec(),
        interceptors=build_interceptors(config, url),
        http_client=Client(_CheckedTransport(_transport(config))),
        **ENVD_RPC_COMPRESSION,
    )


async def upload(url: str, config: ConnectionConfig, path: str, data: bytes, user: str) -> int:
    """Write a file as `user` by the daemon's HTTP route; return the HTTP status of the response.

    Raises the transport's errors if the connection cannot be made or breaks.
    """
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    query: dict[str, str | None] = {"path": path, "username": user}
    response = await Client(_transport(config)).post(
        f"{url}/files",
        params=query,
        headers={
            **config.sandbox_headers,
            "content-type": f"multipart/form-data; boundary={boundary}",
        },
        content=head.encode() + data + f"\r\n--{boundary}--\r\n".encode(),
    )
    return response.status


# Any: the SDK's transport of its own kind.
def _transport(config: ConnectionConfig) -> Any:
    return get_pyqwest_transport(proxy_to_config(config.proxy), http_version=config.http_version)


def _is_the_daemons(body: bytes | bytearray) -> bool:
    try:
        reply = json.loads(body)
    except ValueError:
        return False
    return isinstance(reply, dict) and reply.get("code") in _CODES
