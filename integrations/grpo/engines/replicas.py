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
    """A server answered with an error, `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Replicas:
    """Servers of one model. Every call raises EngineError, which names the url.

    The calls run on sandboxkit's background loop, so that any thread and any loop can wait.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._client = httpx.AsyncClient(
            timeout=None,  # there is a deadline for each call as a whole
            # A connection each: servers end them when idle and after an error, without a word.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    def get(self, url: str, path: str, *, within: float | None = None) -> Operation[Any]:
        """What a server answers, as JSON; `within` fewer seconds than others may take."""
        return Operation(self._ask("GET", url, path, None, within or self.timeout))

    def post(self, url: str, path: str, body: JSON | None = None) -> Operation[Any]:
        """What a server answers, as JSON; as text where it is none."""
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
            return answer.text  # some calls are answered in words
