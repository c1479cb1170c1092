"""A reward function for GRPOTrainer: any grader, a batch at once, None where we failed."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.rewards import (
    Grader,
    Outcome,
    Verdict,
    banned_patterns,
    extract_code,
)
from sandboxkit.integrations.trl._failures import check_batch, check_rate
from sandboxkit.provider import Provider

# Any: TRL's completions are text or lists of messages, and rows hold whatever a data set does.
Completion = str | list[dict[str, Any]]


class SandboxReward:
    """Grades each completion in sandboxes; for `reward_funcs=` of TRL's GRPOTrainer.

    The code is taken out of the completion by `extract` (None of it is the score 0) and graded
    against the row's columns, the grader's task. A column `banned_patterns` lists what the code
    must not use. Equal code for equal rows is graded once.

    A sample that the infrastructure failed is graded again, at most `retry_budget` samples a
    batch, and is then None, never 0: TRL leaves it out of its group's baseline and gives it
    the advantage 0. That holds where this is the only reward function; several go through
    `mask_together`, since TRL adds a None as 0 to the numbers of other functions.
    A call raises TooManyFailuresError where a whole group or more than `max_infra_failed_rate`
    of the batch failed.

    Logged: the metrics `infra_failed_rate`, `duplicate_rate` and `outcome/NAME`, the columns
    `outcome` and `verdict`. `spec` is as for Session. The sandboxes' session lives until
    `close()`, or the interpreter's end. It can be pickled if the provider is given by name.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        provider: str | Provider | None = None,
        max_concurrency: int = 8,
        extract: Callable[[str], str | None] = extract_code,
        retry_budget: int = 16,
        max_infra_failed_rate: float = 0.5,
        name: str = "sandbox_reward",
        **spec: Any,  # Any: the fields of SandboxSpec, which Session checks
    ) -> None:
        if retry_budget < 0:
            raise ConfigurationError(f"retry_budget={retry_budget!r} is negative")
        check_rate(max_infra_failed_rate)
        self.__name__ = name  # what TRL logs it under
        self._grader, self._extract = grader, extract
        self._provider, self._spec = provider, spec
        self._max_concurrency = max_concurrency
        self._retry_budget, self._max_rate = retry_budget, max_infra_failed_rate
        self._session: Session | None = None

    def __call__(
        self, *, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> list[float | None]:
        """Return a reward in [0, 1] or None for each completion; blocks until all are graded."""
        return self._start(prompts, completions, columns).result()

    def close(self) -> None:
        """Stop what is left in sandboxes; the next call starts anew."""
        session, self._session = self._session, None
        if session is not None:
            session.close().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self._provider, Provider):
            raise ConfigurationError(
                f"{self.__name__} cannot be pickled with a provider object: "
                f"give the provider by name, provider={self._provider.name!r}"
            )
        return {**self.__dict__, "_session": None}

    def _start(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        columns: Mapping[str, Any],
    ) -> Operation[list[float | None]]:
        if self._session is None:
            self._session = Session(
                self._provider, max_concurrency=self._max_concurrency, **self._spec
            )
        return Operation(self._rewards(self._session, prompts, completions, columns))

    async def _rewards(
        self,
        session: Session,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        columns: Mapping[str, Any],
    ) -> list[float | None]:
        rows = _rows(columns, len(completions))
        codes = [self._extract(_text(each)) for each in completions]
        keys = [_key(code, row) for code, row in zip(codes, rows, strict=True)]
        unique = dict(zip(keys, zip(codes, rows, strict=True), strict=True))
        verdicts = await self._graded(session, unique)
        failed = [key for key in keys if verdicts[key].outcome is Outcome.INFRA_ERROR]
        again = list(dict.fromkeys(failed))[: self._retry_budget]
        verdicts |= await self._graded(session, {key: unique[key] for key in again})
        results = [verdicts[key] for key in keys]
        _log(results, len(unique), columns)
        rewards = [verdict.reward for verdict in results]
        why = next((each.detail for each in reversed(results) if each.reward is None), "")
        check_batch(rewards, prompts, self._max_rate, why)
        return rewards

    async def _graded(
        self, session: Session, work: Mapping[str, tuple[str | None, Mapping[str, Any]]]
    ) -> dict[str, Verdict]:
        async with asyncio.TaskGroup() as group:
            tasks = {
                key: group.create_task(self._grade(session, code, row))
                for key, (code, row) in work.items()
            }
        return {key: task.result() for key, task in tasks.items()}

    async def _grade(self, session: Session, code: str | None, row: Mapping[str, Any]) -> Verdict:
        if code is None:
            return Verdict(Outcome.FAILED, 0.0, "policy", "no code in the completion")
        if found := banned_patterns(code, row.get("banned_patterns") or []):
            return Verdict(Outcome.FAILED, 0.0, "policy", f"banned: {found[0]}")
        return await self._grader.grade(session, code, row)


class AsyncSandboxReward(SandboxReward):
    """The same as a coroutine function, which TRL runs beside the other asynchronous rewards."""

    async def __call__(  # type: ignore[override]  # TRL tells the two kinds apart by this
        self, *, prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> list[float | None]:
        """Return a reward in [0, 1] or None for each completion."""
        return await self._start(prompts, completions, columns)


def _rows(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The data set's columns, row by row; what else TRL passes is not for a grader."""
    ours = {
        key: values
        for key, values in columns.items()
        if key not in ("completion_ids", "environments")
        and isinstance(values, list)
        and len(values) == count
    }
    return [{key: values[i] for key, values in ours.items()} for i in range(count)]


def _text(completion: Completion) -> str:
    """What the model said last, of a text or of messages."""
    if isinstance(completion, str):
        return completion
    said = [each for each in completion if each.get("role") == "assistant"]
    content = (said[-1].get("content") or "") if said else ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _key(code: str | None, row: Mapping[str, Any]) -> str:
    return json.dumps([code, row], sort_keys=True, default=repr)


def _log(verdicts: Sequence[Verdict], unique: int, columns: Mapping[str, Any]) -> None:
    count = len(verdicts)
    outcomes = Counter(each.outcome for each in verdicts)
    if log_metric := columns.get("log_metric"):
        log_metric("infra_failed_rate", outcomes[Outcome.INFRA_ERROR] / count)
        log_metric("duplicate_rate", 1 - unique / count)
        for outcome in Outcome:
            log_metric(f"outcome/{outcome}", outcomes[outcome] / count)
    if log_extra := columns.get("log_extra"):
        log_extra("outcome", [str(each.outcome) for each in verdicts])
        log_extra("verdict", [each.detail for each in verdicts])
