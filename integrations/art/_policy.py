"""Policies that write the replies: an OpenAI-compatible endpoint, or a script."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandboxkit import ConfigurationError
from sandboxkit.integrations._retries import retry

_UNUSABLE = (urllib.error.URLError, OSError, ValueError, KeyError, IndexError)

Message = Mapping[str, Any]
"""A chat message of the OpenAI API. Any: its JSON."""

Choice = dict[str, Any]
"""A choice of a chat completion; `message` is the assistant's message. Any: its JSON."""


class PolicyError(Exception):
    """Raised if the endpoint returns no usable reply. The rollout is then masked and not scored."""


class Policy(Protocol):
    """A source of the assistant's messages, such as a model's endpoint."""

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Return the assistant's next message as a choice. Raises PolicyError if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """A model at `POST {base_url}/chat/completions`, with retries after transient errors."""

    base_url: str
    """Base URL, such as "http://localhost:8000/v1"."""
    model: str
    api_key: str = field(default="none", repr=False)
    timeout: float = 300.0
    retries: int = 2
    options: Mapping[str, Any] = field(default_factory=lambda: {"logprobs": True})
    """Additional fields of the request, such as temperature or max_tokens. Any: their JSON."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"base_url={self.base_url!r} is not an http address")

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Request the next choice. Raises PolicyError when the retries are used up."""

        def again(error: Exception, failures: int) -> bool:
            final = isinstance(error, urllib.error.HTTPError) and error.code in range(400, 429)
            return isinstance(error, _UNUSABLE) and failures <= self.retries and not final

        try:
            return await retry(
                lambda: asyncio.to_thread(self._ask, list(messages)), again, first=1.0
            )
        except _UNUSABLE as error:
            raise PolicyError(f"{self.base_url}: {error}") from error

    def _ask(self, messages: list[Message]) -> Choice:
        body = {**self.options, "model": self.model, "messages": messages}
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.api_key}",
            },
        )
        with urllib.request.urlopen(request, timeout=self.timeout) as response:
            choice = json.load(response)["choices"][0]
        if not isinstance(choice, dict) or not isinstance(choice["message"]["content"], str):
            raise ValueError("the reply has no text")
        return choice


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """A policy whose replies come from a function of the conversation; needs no network."""

    reply: Callable[[Sequence[Message]], str]

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Return the function's reply in the form of an OpenAI chat completion's `choices[0]`."""
        message = {"role": "assistant", "content": self.reply(messages)}
        return {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
