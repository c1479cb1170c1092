"""Who writes the replies: an OpenAI-compatible endpoint, or a script."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandboxkit import ConfigurationError

Message = Mapping[str, Any]
"""A chat message as the OpenAI API has it. Any: its JSON."""

Choice = dict[str, Any]
"""A choice of a chat completion, of which `message` is the assistant's. Any: its JSON."""


class PolicyError(Exception):
    """The endpoint gave no usable reply; the rollout is masked, never scored."""


class Policy(Protocol):
    """Something that continues a conversation."""

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Return the next choice. Raises PolicyError."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """A model behind `POST {base_url}/chat/completions`, retried where that may help."""

    base_url: str
    """Such as "http://localhost:8000/v1"."""
    model: str
    api_key: str = field(default="none", repr=False)
    timeout: float = 300.0
    retries: int = 2
    options: Mapping[str, Any] = field(default_factory=lambda: {"logprobs": True})
    """Further fields of the request, such as temperature or max_tokens. Any: their JSON."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(f"base_url={self.base_url!r} is not an http address")

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Ask the endpoint. Raises PolicyError."""
        for attempt in range(self.retries + 1):
            try:
                return await asyncio.to_thread(self._ask, list(messages))
            except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError) as error:
                final = isinstance(error, urllib.error.HTTPError) and error.code in range(400, 429)
                if final or attempt == self.retries:
                    raise PolicyError(f"{self.base_url}: {error}") from error
                await asyncio.sleep(2**attempt)
        raise AssertionError("unreachable")

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
    """Replies that a function makes of the conversation so far; needs no network."""

    reply: Callable[[Sequence[Message]], str]

    async def complete(self, messages: Sequence[Message]) -> Choice:
        """Ask the function."""
        message = {"role": "assistant", "content": self.reply(messages)}
        return {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
