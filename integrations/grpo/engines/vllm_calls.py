"""One vLLM server: its HTTP calls, each with a deadline, and a check that it is set up as needed."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any

import anyio
import httpx

from sandboxkit import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest

__all__ = ["JSON", "Refused", "VllmServer", "completion", "prompt_logp", "sampling", "versions"]

JSON = Mapping[str, Any]  # Any: what a server understands
_HEALTH = 10.0
"""Time limit in seconds for a health check."""
_OWN = "default"


class Refused(EngineError):
    """A server answered with an HTTP error; `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def sampling(request: SampleRequest, stop: Collection[int]) -> dict[str, Any]:
    """Return vLLM's sampling parameters for a request."""
    return {
        "temperature": request.temperature,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "stop_token_ids": sorted(stop),
        "ignore_eos": True,  # the stop ids include it
        "logprobs": 0,
        "detokenize": False,
    }


class VllmServer:
    """One server, which serves `model` with `vocabulary` tokens; `stop` are the ids that end a completion.

    Every call may raise EngineError, which names the URL. The calls run on sandboxkit's background loop.
    """

    def __init__(
        self, url: str, settings: Settings, model: str, vocabulary: int, stop: Collection[int]
    ) -> None:
        self.url, self._settings, self._model = url, settings, model
        self._vocabulary, self._stop = vocabulary, stop
        self.lost = ""
        """Why the server is not used; empty while it is used."""
        self.calls: set[Operation[Any]] = set()  # Any: what a server answers
        """Pending calls for completions."""
        self._client = httpx.AsyncClient(
            timeout=None,  # each call has a deadline as a whole
            # One connection per call: servers silently close idle connections, and those after an error.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def post(self, path: str, body: JSON | None = None) -> Any:
        """Send a POST; return the JSON answer, or the text if it is not JSON."""
        return await self._ask("POST", path, body)

    async def generate(self, request: SampleRequest, **more: Any) -> Any:
        """Return the answer to a request, with `more` sampling parameters."""
        parameters = {**sampling(request, self._stop), **more}
        body = {"model": self._model, "token_ids": request.ids, "sampling_params": parameters}
        return await self.post("/inference/v1/generate", body)

    async def close(self) -> None:
        """Cancel the pending calls, and close all connections."""
        for call in tuple(self.calls):
            call.cancel()
        await self._client.aclose()

    async def silence(self) -> str:
        """Return why the server has not answered within `engine.patience` seconds; "" once it answers."""
        deadline = time.monotonic() + self._settings.patience
        for pause in pauses():
            try:
                await self._ask("GET", "/v1/models", within=_HEALTH)
            except EngineError as error:
                if time.monotonic() + pause > deadline:
                    return str(error)
            else:
                break
            await asyncio.sleep(pause)
        return ""

    async def check(self) -> None:
        """Check that the server is ready for weights and requests.

        Raises ConfigurationError if it was not started as needed, EngineError if it fails.
        """
        url, model, wanted = self.url, self._model, self._settings.max_model_tokens
        models = (await self._ask("GET", "/v1/models"))["data"]
        served = {each["id"]: each["max_model_len"] for each in models}
        if model not in served:
            raise ConfigurationError(
                f"vLLM at {url} serves {', '.join(served)}, the run trains {model!r}: start it with "
                f"that model, and --served-model-name {model}"
            )
        if served[model] < wanted:
            raise ConfigurationError(
                f"vLLM at {url} takes {served[model]} tokens, engine.max_model_tokens="
                f"{wanted}: start it with --max-model-len {wanted}"
            )
        try:
            await self.post("/resume")  # a killed run may have paused it
        except Refused as error:
            raise ConfigurationError(
                f"vLLM at {url} has no control calls ({error}): start it with VLLM_SERVER_DEV_MODE=1"
            ) from error
        last = await self._only(self._vocabulary - 1)
        if last is None or await self._only(self._vocabulary) is not None:
            raise ConfigurationError(
                f"vLLM at {url} serves a model of another vocabulary than the {self._vocabulary} "
                f"tokens of {model!r}: start it with that model"
            )
        if completion(last, url).logp[0] != 0.0:
            raise ConfigurationError(
                f"vLLM at {url} gives log-probabilities from before the temperature: start it with "
                "--logprobs-mode processed_logprobs"
            )

    async def _only(self, token: int) -> Any:
        """Return the answer to a request that allows only `token`; None if there is no such token."""
        try:
            return await self.generate(SampleRequest((0,), 1, 1.0, 0), allowed_token_ids=[token])
        except Refused as error:
            if error.status == 400:
                return None
            if error.status not in (403, 404):
                raise
            raise ConfigurationError(
                f"vLLM at {self.url} samples nothing ({error}): start it with --enable-scale-out"
            ) from error

    async def _ask(
        self, method: str, path: str, body: JSON | None = None, within: float | None = None
    ) -> Any:
        most = self._settings.timeout
        within = min(within or most, most)
        try:
            with anyio.fail_after(within):
                answer = await self._client.request(method, f"{self.url}{path}", json=body)
        except TimeoutError as error:
            limit = f"engine.timeout={within:g}" if within == most else f"{within:g}"
            raise EngineError(
                f"vLLM at {self.url} did not answer {path} within {limit} s"
            ) from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"vLLM at {self.url} cannot be reached for {path} ({type(error).__name__}: {error}): "
                "start it, or correct engine.urls"
            ) from error
        if answer.status_code != 200:
            text = f"answered {path} with {answer.status_code}: {answer.text[:500]}"
            raise Refused(f"vLLM at {self.url} {text}", answer.status_code)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            return answer.text  # some calls are answered in plain text


# Any, below: a server gave it.
def completion(answer: Any, url: str) -> Completion:
    """Parse an answer. Raises ValueError, LookupError or TypeError if it is invalid."""
    (choice,) = answer["choices"]
    ids = tuple(choice["token_ids"])
    chosen = zip(ids, choice["logprobs"]["content"], strict=True)
    logp = tuple(float(each["logprob"]) for token, each in chosen if each["token_id"] == token)
    if len(logp) != len(ids) or choice["finish_reason"] == "abort":
        raise ValueError("it was given up")
    return Completion(ids, logp, versions(answer)[0] or 0, url)


def prompt_logp(answer: Any, ids: tuple[int, ...]) -> tuple[float, ...]:
    """Return the log-probabilities of a prompt's tokens but the first. Raises as `completion` does."""
    each = zip(ids[1:], answer["prompt_logprobs"][1:], strict=True)
    return tuple(float(found[str(token)]["logprob"]) for token, found in each)


def versions(answer: Any) -> list[int | None]:
    """Return the versions of the weights that wrote it, in order; None for the server's initial weights."""
    (choice,) = answer["choices"]
    named = [span["version"] for span in choice["weight_versions"]]
    return [None if version == _OWN else int(version) for version in named]
