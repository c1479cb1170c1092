"""The SDK's client of a sandbox's daemon, changed to keep the error responses of proxies.

It uses the protocol's binary form, as E2B's own servers do with the daemon. The SDK uses JSON, which
carries a program's data as base64.

The SDK's client maps several statuses to one code and drops the headers. That loses the difference
between a refusal, after which nothing has run, and a response after which the outcome is unknown.
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

__all__ = ["AnsweredError", "process_client", "upload"]

_LONGEST = 1 << 16
_CODES = frozenset(code.value for code in Code)


@dataclass
class AnsweredError(Exception):
    """An HTTP error from a proxy in front of the daemon: its body lacks the daemon's error codes.

    It is the `__cause__` of the ConnectError that the client raises.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Answers:
    """A transport that raises AnsweredError for error responses that are not the daemon's."""

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
        raise AnsweredError(response.status, headers, bytes(body))


def process_client(url: str, config: ConnectionConfig) -> ProcessClient:
    """Return a client of the process service at `url`; it retries only requests it never sent."""
    return ProcessClient(
        url,
        codec=proto_binary_codec(),
        interceptors=build_interceptors(config, url),
        http_client=Client(_Answers(_transport(config))),
        **ENVD_RPC_COMPRESSION,
    )


async def upload(url: str, config: ConnectionConfig, path: str, data: bytes, user: str) -> int:
    """Write a file by the daemon's HTTP route, as `user`; return the status of the response.

    Raises what the transport raises if the connection cannot be made or breaks.
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
