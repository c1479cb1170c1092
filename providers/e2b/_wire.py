"""The client of a sandbox's daemon: the SDK's own, which keeps what answers in its place said.

It speaks the protocol in its binary form, as E2B's own servers do with the daemon; the SDK's form is
JSON, with every byte of a program in base64.

The SDK's makes one code of several statuses and drops the headers. With them goes the difference
between a refusal, after which nothing has run, and an answer after which nobody knows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from connectrpc.code import Code
from connectrpc.codec import proto_binary_codec
from e2b import ConnectionConfig
from e2b.api import proxy_to_config
from e2b.api.client_async import get_pyqwest_transport
from e2b.envd.client_shared import ENVD_RPC_COMPRESSION
from e2b.envd.interceptors import build_interceptors
from e2b.envd.process.process_connect import ProcessClient
from pyqwest import Client, Request, Response, Transport

__all__ = ["AnsweredError", "process_client"]

_LONGEST = 1 << 16
_CODES = frozenset(code.value for code in Code)


@dataclass
class AnsweredError(Exception):
    """Not the daemon answered, but what stands before it: an HTTP error without the daemon's code.

    It is the cause of the ConnectError that the client raises.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Answers:
    """A transport that raises AnsweredError."""

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
    """A client of the process service at `url`; it tries again only what was never sent."""
    transport = get_pyqwest_transport(
        proxy_to_config(config.proxy), http_version=config.http_version
    )
    return ProcessClient(
        url,
        codec=proto_binary_codec(),
        interceptors=build_interceptors(config, url),
        http_client=Client(_Answers(transport)),
        **ENVD_RPC_COMPRESSION,
    )


def _is_the_daemons(body: bytes | bytearray) -> bool:
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("code") in _CODES
