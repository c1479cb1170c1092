"""Base classes of the environments for TRL, and the trace of a rollout."""

import contextlib
import dataclasses
import inspect
import json
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, Session
from sandboxkit.integrations._tools import Schema, ToolResult
from sandboxkit.integrations._training.clock import Part
from sandboxkit.integrations._training.rollout_record import Call, Turn
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.provider import Provider

_MOST_FAILURES = 64
_ANNOTATIONS = {"string": str, "integer": int, "boolean": bool, "array": list[int]}


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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._trace = Trace()
        """The trace of the current rollout; each `reset` makes a new one."""

    # Any, here and below: arguments written by a model; nobody has checked them.
    @abstractmethod
    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Make a tool call."""

    def _tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Make a tool call, record it, and return the text for the model."""
        begun = time.monotonic()
        result = Operation(self._call(name, arguments)).result()
        self._trace.add_call(name, arguments, result.text, result.error, begun)
        return result.text

    # Any: a row of a user's data set.
    @abstractmethod
    def reset(self, **row: Any) -> str | None:
        """Begin a rollout for a data set's row and drop the previous one. Does not wait for a sandbox.

        TRL adds the text that is returned, if any, to the prompt's last message.
        """

    @abstractmethod
    async def _grade(self) -> tuple[Verdict, float | None]:
        """Grade the rollout; return the verdict and the reward, None after an infrastructure failure."""


def require_limits(timeout: float, start_timeout: float, observation_limit: int) -> None:
    """Raise ConfigurationError for limits of tool calls that make no sense."""
    if min(timeout, start_timeout) <= 0 or observation_limit < 100:
        raise ConfigurationError(
            f"timeout={timeout!r}, start_timeout={start_timeout!r}, "
            f"observation_limit={observation_limit!r}: give seconds above 0 and 100 "
            "characters or more"
        )


class OwnsSession:
    """Opens a session for one process. A pickled copy opens its own, as AsyncGRPOTrainer's worker needs it."""

    session: Session

    def _open(self, provider: str | Provider | None, limit: int | None, options: Any) -> None:
        self._options = {"provider": provider, "max_concurrency": limit, **options}
        self.session = Session(**self._options)

    def close(self) -> None:
        """Close the session and stop its sandboxes."""
        self.session.close().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "session"}
        for name, value in state.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigurationError(
                    f"{type(self).__name__} cannot be pickled, because of its {name.lstrip('_')} "
                    f"{value!r}: use classes and functions of a module ({error})"
                ) from error
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, session=Session(**state["_options"]))


E = TypeVar("E", bound=RolloutEnvironment)


class Environments(OwnsSession, Generic[E]):
    """A factory of environments. It owns their session and closes it when the context ends.

    TRL makes one environment per rollout of a batch, reuses them for the next batch, and never
    closes them. A pickled copy makes environments with `get_reward`, because AsyncGRPOTrainer, which
    pickles them, gives no environments to reward functions.
    """

    _made: Callable[[Any], E]
    """Makes an environment of this factory. Any: the factory itself, of a class that derives from this."""
    _rewarded: Callable[[Any], E]
    """Makes one with `get_reward`."""
    _works = False
    _failures = 0
    """Number of rollouts since the last one that `get_reward` could grade."""

    def __call__(self) -> E:
        """Return a new environment; `reset` starts its sandbox.

        Raises ProviderUnavailableError if the backend is not available. TRL makes its environments
        before the first batch, so the error is early.
        """
        if not self._works:
            report = self.session.diagnose().result()
            if not report.available:
                name = self.session.provider_name
                raise ProviderUnavailableError(
                    f"provider {name!r} cannot work: {report.detail}. {report.remedy}".rstrip(". "),
                    provider=name,
                )
            self._works = True
        return self._made(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_made": state["_rewarded"]})

    def note(self, verdict: Verdict, reward: float | None) -> float | None:
        """Return what `get_reward` found. Raises ProviderUnavailableError after `_MOST_FAILURES` in a row."""
        self._failures = self._failures + 1 if reward is None else 0
        if self._failures >= _MOST_FAILURES:
            raise ProviderUnavailableError(
                f"get_reward: the last {self._failures} rollouts failed in the infrastructure; the last: "
                f"{verdict.detail}",
                provider=self.session.provider_name,
            )
        return reward


def tool_method(schema: Schema) -> Callable[..., str]:
    """Return a method of a RolloutEnvironment that makes the calls of a tool.

    TRL derives a schema from its signature and docstring, which is the same again.
    """
    tool = schema["function"]
    properties, required = tool["parameters"]["properties"], tool["parameters"]["required"]

    parameters = list[inspect.Parameter]()
    described = [tool["description"], "", "Args:"]
    for name, field_ in properties.items():
        kind = _ANNOTATIONS[field_["type"]]
        default = inspect.Parameter.empty if name in required else None
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default
            )
        )
        choices = f" (choices: {json.dumps(field_['enum'])})" if "enum" in field_ else ""
        described.append(f"    {name}: {field_['description']}{choices}")
    signature = inspect.Signature(parameters, return_annotation=str)

    # Any: arguments written by a model.
    def method(self: RolloutEnvironment, *given: Any, **named: Any) -> str:
        return self._tool(tool["name"], signature.bind_partial(*given).arguments | named)

    method.__name__ = tool["name"]
    method.__doc__ = "\n".join(described if properties else described[:1])
    method.__annotations__ = {each.name: each.annotation for each in parameters}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # inspect.signature, by which TRL reads it, returns this.
    method.__signature__ = signature.replace(parameters=[own, *parameters])  # type: ignore[attr-defined]
    return method


def tools_of(environment: RolloutEnvironment) -> list[Callable[..., str]]:
    """Return the methods that TRL uses as tools: the public ones except `reset` and `get_reward`."""
    return [
        getattr(environment, name)
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
