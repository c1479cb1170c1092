"""Base classes of the environments for TRL, and the trace of a rollout."""

import contextlib
import dataclasses
import inspect
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.integrations._training.clock import Part
from sandboxkit.integrations._training.rollout_record import Call, Turn
from sandboxkit.integrations.rewards import Verdict


@dataclass(slots=True)
class Trace:
    """The tool calls, tokens and times of a rollout. TRL does not report a field that is None or empty."""

    seconds: dict[Part, float] = field(default_factory=dict)
    """Seconds by part. `start` is how long the first tool call, or grading, waited for the sandbox."""
    turns: list[Turn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    prompt_tokens: int | None = None
    policy_tokens: int | None = None
    tool_tokens: int | None = None
    truncated: bool | None = None

    @contextlib.contextmanager
    def spend(self, part: Part) -> Iterator[None]:
        """Add the time that the `with` block takes to `part`."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - begun

    # Any: arguments written by a model.
    def add_call(
        self, name: str, arguments: Mapping[str, Any], answer: str, error: bool, begun: float
    ) -> None:
        """Record a finished tool call. `begun` is its start on `time.monotonic`."""
        took = time.monotonic() - begun
        turn = max(len(self.turns) - 1, 0)
        written = _written(name, arguments)
        self.calls.append(Call(turn, written, answer, error, name == "submit", took))

    def numbered(self, turns: Iterable[int]) -> list[Call]:
        """Return the calls. If no turns were recorded, `turns` has the turn index of each call."""
        if self.turns:
            return self.calls
        places = iter(turns)
        return [dataclasses.replace(each, turn=next(places, each.turn)) for each in self.calls]


# Any: arguments written by a model.
def _written(name: str, arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps({"name": name, "arguments": arguments}, default=str, skipkeys=True)
    except (RecursionError, ValueError):
        return json.dumps({"name": name})


class RolloutEnvironment(ABC):
    """An environment that is reused for many rollouts. The model can call its public methods."""

    def __init__(self) -> None:
        self._trace = Trace()
        """The trace of the current rollout; each `reset` makes a new one."""

    # Any: a row of a user's data set.
    @abstractmethod
    def reset(self, **row: Any) -> None:
        """Begin a rollout for a data set's row and drop the previous one. Does not wait for a sandbox."""

    @abstractmethod
    async def _grade(self) -> tuple[Verdict, float | None]:
        """Grade the rollout; return the verdict and the reward, None after an infrastructure failure."""

    def _quiet(self) -> float | None:
        """Return the seconds since any sandbox of the session started or ended; None without a session."""
        return None

    def _reward(self) -> float | None:
        return Operation(self._grade()).result()[1]


class Environments(ABC):
    """A factory of environments. It owns their session and closes it when the context ends.

    TRL makes one environment per rollout of a batch, reuses them for the next batch, and never
    closes them.
    """

    session: Session
    _works = False

    @abstractmethod
    def __call__(self) -> RolloutEnvironment:
        """Return a new environment; `reset` starts its sandbox.

        Raises ProviderUnavailableError if the backend is not available. TRL makes its environments
        before the first batch, so the error is early.
        """

    def _require_backend(self) -> None:
        if self._works:
            return
        report = self.session.diagnose().result()
        if not report.available:
            name = self.session.provider_name
            raise ProviderUnavailableError(
                f"provider {name!r} cannot work: {report.detail}. {report.remedy}".rstrip(". "),
                provider=name,
            )
        self._works = True

    def close(self) -> None:
        """Close the session, which stops the sandboxes of all environments."""
        self.session.close().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tools_of(environment: RolloutEnvironment) -> list[Callable[..., str]]:
    """Return the methods that TRL uses as tools: the public ones except `reset` and `get_reward`."""
    return [
        getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
