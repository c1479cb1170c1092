"""Several reward functions, of which none may turn another's failure into a 0."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sandboxkit import ConfigurationError

# Any: TRL's reward functions take whatever columns a data set has.
RewardFunc = Callable[..., Any]
Rewards = list[float | None]


def mask_together(*reward_funcs: RewardFunc) -> list[RewardFunc]:
    """Return functions for `reward_funcs=`, each None in every row where any of them is.

    TRL sums the functions' rewards with a None counted as 0, so a sample of which one function
    failed would keep a reward that is too low. Each function is called once a batch, and is
    logged and weighted as before. With environments, a failed one masks its row as well.
    A None that means "this function does not apply to this row" cannot be told from a failure:
    leave such functions out.
    """
    if not reward_funcs:
        raise ConfigurationError("mask_together needs at least one reward function")
    shared = _Shared(reward_funcs)
    return [_Masked(shared, index) for index in range(len(reward_funcs))]


class _Shared:
    """The rewards of the batch at hand, which the members ask for one after another."""

    def __init__(self, reward_funcs: Sequence[RewardFunc]) -> None:
        self.reward_funcs = reward_funcs
        self._batch: asyncio.Task[list[Rewards]] | None = None
        self._readers = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"reward_funcs": self.reward_funcs, "_batch": None, "_readers": 0}

    async def rewards(self, index: int, given: dict[str, Any]) -> Rewards:
        # TRL gathers all asynchronous functions of a batch on one loop, so each reads once.
        if self._batch is None:
            self._batch = asyncio.ensure_future(self._all(given))
        batch = self._batch
        self._readers += 1
        if self._readers == len(self.reward_funcs):
            self._batch, self._readers = None, 0
        return (await asyncio.shield(batch))[index]

    async def _all(self, given: dict[str, Any]) -> list[Rewards]:
        columns = list(await asyncio.gather(*(_call(each, given) for each in self.reward_funcs)))
        count = len(given["completions"])
        for function, column in zip(self.reward_funcs, columns, strict=True):
            if len(column) != count:
                raise ConfigurationError(
                    f"{_name(function)} returned {len(column)} rewards for {count} completions"
                )
        judges = [*columns, await _of_environments(given)]
        masked = [any(column[i] is None for column in judges) for i in range(count)]
        return [
            [None if hide else value for hide, value in zip(masked, column, strict=True)]
            for column in columns
        ]


class _Masked:
    """One of the functions; asynchronous, so that all of a batch are asked at once."""

    def __init__(self, shared: _Shared, index: int) -> None:
        self.__name__ = _name(shared.reward_funcs[index])
        self._shared, self._index = shared, index

    async def __call__(self, **given: Any) -> Rewards:
        return await self._shared.rewards(self._index, given)


async def _call(function: RewardFunc, given: dict[str, Any]) -> Rewards:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # whether it is async, not whether
    ):
        return list(await function(**given))
    return list(await asyncio.to_thread(function, **given))


async def _of_environments(given: dict[str, Any]) -> Rewards:
    """What environments with rewards of their own say; 0 for those that have none."""
    count = len(given["completions"])
    rewards: Rewards = [0.0] * count
    for index, environment in enumerate(given.get("environments") or []):
        if hasattr(environment, "get_reward"):
            value = await asyncio.to_thread(environment.get_reward)
            rewards[index] = await value if inspect.isawaitable(value) else value
    return rewards


def _name(function: RewardFunc) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
