"""Calls to vLLM servers over HTTP, each with a deadline."""

from collections.abc import Mapping
from typing import Any

import anyio
import httpx

from sandboxkit import Operation
from sandboxkit.integrations.grpo.engines import EngineError

__all__ = ["JSON", "Refused", "Replicas"]

JSON = Mapping[str, Any]  # Any: what a server understands


class Refused(EngineError):
    """A server answered with an HTTP error; `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Replicas:
    """HTTP client for the servers of one model. Every call may raise EngineError, which names the URL.

    The calls run on sandboxkit's background loop, so any thread or event loop can wait for them.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._client = httpx.AsyncClient(
            timeout=None,  # each call has a deadline as a whole
            # One connection per call: servers silently close idle connections, and those after an error.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    def get(self, url: str, path: str, *, within: float | None = None) -> Operation[Any]:
        """Send a GET; return the JSON answer. `within` is a time limit in seconds below the default."""
        return Operation(self._ask("GET", url, path, None, within or self.timeout))

    def post(self, url: str, path: str, body: JSON | None = None) -> Operation[Any]:
        """Send a POST; return the JSON answer, or the text if it is not JSON."""
        return Operation(self._ask("POST", url, path, body, self.timeout))

    def close(self) -> None:
        """Close all connections."""
        Operation(self._client.aclose()).result()

    async def _ask(self, method: str, url: str, path: str, body: JSON | None, within: float) -> Any:
        within = min(within, self.timeout)
        try:
            with anyio.fail_after(within):
                answer = await self._client.request(method, f"{url}{path}", json=body)
        except TimeoutError as error:
            limit = f"engine.timeout={within:g}" if within == self.timeout else f"{within:g}"
            raise EngineError(f"vLLM at {url} did not answer {path} within {limit} s") from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"vLLM at {url} cannot be reached for {path} ({type(error).__name__}: {error}): "
                "start it, or correct engine.urls"
            ) from error
        if answer.status_code != 200:
            raise Refused(
                f"vLLM at {url} answered {path} with {answer.status_code}: {answer.text[:500]}",
                answer.status_code,
            )
        try:
            return answer.json() if answer.content else None
        except ValueError:
            return answer.text  # some calls are answered in plain text
