"""Calls to vLLM servers over HTTP: to one, or to all at once, each with a deadline."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import httpx

from sandboxkit import Operation, as_completed
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

    def __init__(self, urls: Sequence[str], timeout: float) -> None:
        self.urls, self.timeout = tuple(urls), timeout
        self._client = httpx.AsyncClient(
            timeout=None,  # there is a deadline for each call as a whole
            # A connection each: servers end them when idle and after an error, without a word.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    def __str__(self) -> str:
        return f"vLLM at {', '.join(self.urls)}"

    def get(self, url: str, path: str) -> Operation[Any]:
        """What a server answers, as JSON."""
        return Operation(self._ask("GET", url, path, None))

    def post(self, url: str, path: str, body: JSON | None = None) -> Operation[Any]:
        """What a server answers, as JSON."""
        return Operation(self._ask("POST", url, path, body))

    def post_all(self, path: str, *bodies: JSON) -> list[Operation[Any]]:
        """The same to every server, or to each its own of `bodies`."""
        each = bodies if len(bodies) == len(self.urls) else (bodies or (None,)) * len(self.urls)
        return [self.post(url, path, body) for url, body in zip(self.urls, each, strict=True)]

    def wait_all(self, calls: Sequence[Operation[Any]]) -> list[Any]:
        """All answers; the first failure gives up the other calls."""
        try:
            for call in as_completed(calls):
                call.result()
            return [call.result() for call in calls]
        finally:
            for call in calls:
                call.cancel()

    def close(self) -> None:
        """Close all connections."""
        Operation(self._client.aclose()).result()

    async def _ask(self, method: str, url: str, path: str, body: JSON | None) -> Any:
        try:
            with anyio.fail_after(self.timeout):
                answer = await self._client.request(method, f"{url}{path}", json=body)
        except TimeoutError as error:
            raise EngineError(
                f"vLLM at {url} did not answer {path} within engine.timeout={self.timeout:g} s"
            ) from error
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
        return answer.json() if answer.content else None
