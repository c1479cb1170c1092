"""What the environments of every kind have in common, whichever way TRL drives them."""

import contextlib
import dataclasses
import inspect
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.integrations._kept import Call, Turn
from sandboxkit.integrations.grpo.clock import Part
from sandboxkit.integrations.rewards import Verdict


@dataclass(slots=True)
class Trace:
    """What a rollout did and how long it took; None and nothing is what TRL does not say."""

    seconds: dict[Part, float] = field(default_factory=dict)
    """`start` is what its first tool call, or its grade, waited for the sandbox, room included."""
    turns: list[Turn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    prompt_tokens: int | None = None
    policy_tokens: int | None = None
    tool_tokens: int | None = None
    truncated: bool | None = None

    @contextlib.contextmanager
    def spend(self, part: Part) -> Iterator[None]:
        """The context's time is in this part."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - begun

    # Any: what a model wrote.
    def called(
        self, name: str, arguments: Mapping[str, Any], answer: str, error: bool, begun: float
    ) -> None:
        """A tool call that has ended."""
        took = time.monotonic() - begun
        turn = max(len(self.turns) - 1, 0)
        written = _written(name, arguments)
        self.calls.append(Call(turn, written, answer, error, name == "submit", took))

    def numbered(self, turns: Iterable[int]) -> list[Call]:
        """The calls; where nobody told the turns while they were made they are of these."""
        if self.turns:
            return self.calls
        places = iter(turns)
        return [dataclasses.replace(each, turn=next(places, each.turn)) for each in self.calls]


# Any: what a model wrote.
def _written(name: str, arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps({"name": name, "arguments": arguments}, default=str, skipkeys=True)
    except (RecursionError, ValueError):
        return json.dumps({"name": name})


class RolloutEnvironment(ABC):
    """One rollout at a time, again and again. Public methods are what the model may call."""

    def __init__(self) -> None:
        self._trace = Trace()
        """Of the rollout that was begun last; each `reset` makes another."""

    # Any: a row of somebody's data set.
    @abstractmethod
    def reset(self, **row: Any) -> None:
        """Begin a rollout and drop the one before. Does not wait for a sandbox."""

    @abstractmethod
    async def _grade(self) -> tuple[Verdict, float | None]:
        """Grade what the rollout left, and its reward: None for a failure that is ours."""

    def _reward(self) -> float | None:
        return Operation(self._grade()).result()[1]


class Environments(ABC):
    """Makes a rollout's environment when asked for one, and closes them all in the end.

    TRL makes as many as a batch has rollouts, reuses them for the next and never closes one; so
    this owns the session and what runs in it.
    """

    session: Session
    _works = False

    @abstractmethod
    def __call__(self) -> RolloutEnvironment:
        """A new environment, without a sandbox until it is reset.

        Raises ProviderUnavailableError where the backend cannot work: TRL makes its environments
        before the first batch.
        """

    def _require_backend(self) -> None:
        if self._works:
            return
        said = self.session.diagnose().result()
        if not said.available:
            name = self.session.provider_name
            raise ProviderUnavailableError(
                f"provider {name!r} cannot work: {said.detail}. {said.remedy}".rstrip(". "),
                provider=name,
            )
        self._works = True

    def close(self) -> None:
        """Stop every sandbox of every environment."""
        self.session.close().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def tools_of(environment: RolloutEnvironment) -> list[Callable[..., str]]:
    """What TRL takes for an environment's tools: its public methods but the two of its own."""
    return [
        getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
