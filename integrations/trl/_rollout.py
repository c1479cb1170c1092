"""What the environments of every kind have in common, whichever way TRL drives them."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.integrations.rewards import Verdict


class RolloutEnvironment(ABC):
    """One rollout at a time, again and again. Public methods are what the model may call."""

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
