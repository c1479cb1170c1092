"""Rollouts: completions of one prompt, single-turn or with a sandbox's tools, their rewards and records."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from sandboxkit import ConfigurationError, SandboxError, Session
from sandboxkit.integrations._service import DeadlineError, service_time, within
from sandboxkit.integrations._tools import ToolResult, refusal
from sandboxkit.integrations._training.clock import Part, StageTimes, Timer
from sandboxkit.integrations._training.gradings import GradedSample, SharedGradings, verdict_by
from sandboxkit.integrations._training.rollout_record import Call, RolloutRecord, Turn
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.engines import Engine, SampleRequest
from sandboxkit.integrations.grpo.turns import ToolTurns
from sandboxkit.integrations.grpo.workplace import OwnSandbox, SweTask, Workplace
from sandboxkit.integrations.rewards import (
    Grader,
    Outcome,
    Phase,
    Verdict,
    extract_code,
    verdict_of,
)
from sandboxkit.integrations.swe import Task

__all__ = ["Group", "Rollout", "RolloutRunner", "record"]

_UNGRADED = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "not graded")


@dataclass(slots=True)
class Rollout:
    """One rollout. `completion`, `mask` and `logp` have one entry per token."""

    row: Row
    completion: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    """Whether the policy wrote the token."""
    logp: list[float] = field(default_factory=list)
    version: int | None = None
    """Version of the oldest weights that wrote a part; None before the first turn."""
    verdict: Verdict = _UNGRADED
    grader_raised: bool = False
    calls: list[Call] = field(default_factory=list)
    seconds: dict[Part, float] = field(default_factory=dict)
    """Seconds by part. A sandbox start that overlaps with sampling counts as sampling."""
    used_sandbox: bool = False
    """Whether it used a sandbox for tool calls, its work or grading. A cached verdict uses none."""
    truncated: bool = False
    """Whether the token limit cut it off in the middle of a turn."""
    remembered: bool = False
    """Whether its verdict was copied from an equal rollout, for which it may have waited."""
    server: str = ""
    """The engine's server that generated the last turn."""
    greedy: bool = False
    """Whether each token is the likeliest one instead of a sample at `rollout.temperature`."""

    @property
    def needed_sandbox(self) -> bool:
        """Whether it counts in the failure rate: it used a sandbox or failed to get one."""
        return self.used_sandbox or self.verdict.reward is None

    @property
    def tool_calls(self) -> int:
        """Number of tool calls, including invalid ones."""
        return len(self.calls)

    def add(self, ids: tuple[int, ...], logp: tuple[float, ...] | None = None) -> None:
        """Append tokens of the policy, or without `logp` those of a tool, which carry no loss."""
        self.completion += ids
        self.mask += [logp is not None] * len(ids)
        self.logp += [0.0] * len(ids) if logp is None else logp


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one prompt."""

    number: int
    """Position in the stream of prompts."""
    rollouts: tuple[Rollout, ...]

    @property
    def version(self) -> int | None:
        """Version of the oldest weights in the group; None if no rollout has tokens."""
        known = [r.version for r in self.rollouts if r.version is not None]
        return min(known, default=None)

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; None where the infrastructure or the grader failed."""
        return [rollout.verdict.reward for rollout in self.rollouts]

    @property
    def teaches(self) -> bool:
        """Whether the group gives a gradient: at least two known rewards differ."""
        return len({reward for reward in self.rewards if reward is not None}) > 1


class RolloutRunner:
    """Makes rollouts. Runs on one event loop; `close` cancels gradings in progress.

    Raises an engine's errors. A failure of a sandbox or of the grader becomes the verdict INFRA_ERROR,
    which has no reward.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        stop: set[int],
        engine: Engine,
        session: Session,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        """With `tasks`, each rollout works on the SWE task that its row names."""
        self._config, self._tokenizer, self._stop = config.rollout, tokenizer, stop
        self._seed = config.run.seed
        self._engine, self._session, self._tasks = engine, session, tasks or {}
        self.clock = StageTimes()
        self._room = asyncio.Semaphore(config.grading.max_concurrency)
        self._grader: Grader = within(config.grader(), self._config.deadline)
        self._tools = ToolTurns(tokenizer, stop) if config.rollout.max_turns > 1 else None
        self._gradings = SharedGradings(config.grading.remember, self._config.deadline)

    async def group(self, row: Row, number: int) -> Group:
        """Make the group at a position of the stream of prompts, with its rollouts concurrent."""
        async with asyncio.TaskGroup() as running:
            tasks = [
                running.create_task(self.one(row, f"{self._seed} {number} {member}"))
                for member in range(self._config.group_size)
            ]
        return Group(number, tuple(task.result() for task in tasks))

    async def one(self, row: Row, seed: str, *, greedy: bool = False) -> Rollout:
        """Make one rollout. Sampling depends only on `seed` and the weights."""
        rollout = Rollout(row, greedy=greedy)
        numbers = random.Random(seed)
        with Timer(self.clock, rollout.seconds) as timer:
            if self._tools is None:
                await self._turn(rollout, numbers, timer)
                submission: str | Verdict | None = self._submission(rollout)
            else:
                submission = await self._episode(rollout, numbers, timer)
            if submission is None:
                detail = "no code in the completion"
                rollout.verdict = Verdict(Outcome.FAILED, 0.0, "policy", detail)
            elif isinstance(submission, Verdict):
                rollout.verdict = submission
            else:
                await self._grade(rollout, submission, timer)
        return rollout

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens to text, including special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def close(self) -> None:
        """Cancel the gradings in progress. Call this on their event loop."""
        self._gradings.close()

    async def _turn(
        self, rollout: Rollout, numbers: random.Random, timer: Timer
    ) -> tuple[int, ...]:
        """Sample one turn and return its tokens."""
        timer.enter("sampling")
        done = await self._engine.generate(
            SampleRequest(
                rollout.row.prompt + tuple(rollout.completion),
                self._config.max_completion_tokens - len(rollout.completion),
                0.0 if rollout.greedy else self._config.temperature,
                numbers.getrandbits(63),
                rollout.server,
            )
        )
        rollout.server = done.server
        rollout.add(done.ids, done.logp)
        versions = (done.version, rollout.version)
        rollout.version = min(version for version in versions if version is not None)
        rollout.truncated = not done.ids or done.ids[-1] not in self._stop
        return done.ids

    async def _episode(
        self, rollout: Rollout, numbers: random.Random, timer: Timer
    ) -> str | Verdict | None:
        """Run all turns in the rollout's own workplace; return the submission, its verdict, or None."""
        try:
            async with self._workplace(rollout.row) as place:
                await self._turns(rollout, place, numbers, timer)
                timer.enter("tools")
                if not place.leaves_work:
                    return self._submission(rollout)
                rollout.used_sandbox = True
                await place.ready(timer)
                async with asyncio.timeout(place.deadline):
                    return await place.work()
        except TimeoutError:
            detail = (
                "a sandbox or a tool was not done in time, with "
                f"rollout.deadline={self._config.deadline:g} s"
            )
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
        except ConfigurationError:
            raise
        except SandboxError as error:
            return verdict_of(error, Phase.WORKED_IN)

    def _workplace(self, row: Row) -> Workplace:
        if self._tasks:
            return SweTask(self._session, self._tasks, row, self._config, self._room)
        return OwnSandbox(self._session, row, self._config, self._room)

    async def _turns(
        self, rollout: Rollout, place: Workplace, numbers: random.Random, timer: Timer
    ) -> None:
        assert self._tools is not None
        for turn in range(self._config.max_turns):
            written = self._tools.calls(self.text(await self._turn(rollout, numbers, timer)))
            if not written:
                return
            rollout.used_sandbox = True
            await place.ready(timer)
            results, over = list[ToolResult](), time.monotonic() + place.deadline
            for each in written:
                begun = time.monotonic()
                late = begun > over
                if late:
                    made = refusal("not made: a turn's time is over")
                else:
                    # A limit for each call, not for the turn, since the policy may make many calls.
                    async with asyncio.timeout(place.deadline):
                        made = await self._tools.make(place, each)
                results.append(made)
                took = time.monotonic() - begun
                rollout.calls.append(
                    Call(2 * turn, each, made.text, made.error, made.submitted, took)
                )
                if late or made.submitted:
                    break
            if made.submitted or turn + 1 == self._config.max_turns:
                return
            answer = self._tools.ids(results, written)
            left = self._config.max_completion_tokens - len(rollout.completion)
            if rollout.completion[-1] not in self._stop or len(answer) >= left:
                return
            rollout.add(answer)

    def _submission(self, rollout: Rollout) -> str | None:
        own = [i for i, m in zip(rollout.completion, rollout.mask, strict=True) if m]
        text = str(self._tokenizer.decode(own, skip_special_tokens=True))
        if self._config.submission == "text":
            return rollout.row.prefix + text
        extract: Callable[[str], str | None] = getattr(self._grader, "extract", extract_code)
        return extract(text)

    async def _grade(self, rollout: Rollout, submission: str, timer: Timer) -> None:
        """Set the rollout's verdict: a new one, or that of an equal submission for an equal row."""
        key = rollout.row.number, submission
        judge = partial(self.judge, rollout.row, submission)
        sample = await self._gradings.get(key, judge, timer)
        rollout.verdict, rollout.remembered = sample.verdict, sample.remembered
        rollout.grader_raised = sample.grader_raised
        rollout.used_sandbox |= not sample.remembered

    async def check(self, row: Row) -> GradedSample:
        """Grade an empty submission, as `judge` does; a reward shows that sandboxes and grader work."""
        if not self._tasks:
            return await self.judge(row, row.prefix)
        with Timer(self.clock, {}) as timer:
            async with self._workplace(row) as place:
                await place.ready(timer)
                work = await place.work()
        assert isinstance(work, Verdict)
        return GradedSample(work)

    async def judge(
        self, row: Row, submission: str, begins: Callable[[], None] = lambda: None
    ) -> GradedSample:
        """Return the verdict, and whether the grader itself raised.

        A retryable SandboxError that the grader lets through counts as the backend's. `begins` is
        called when the grading leaves the queue.
        """
        own = False
        try:
            async with self._room:
                begins()
                async with service_time(self._config.deadline, lambda: self._session.quiet):
                    return GradedSample(
                        await verdict_by(self._grader, self._session, submission, row.task)
                    )
        except DeadlineError:
            detail = f"not graded within rollout.deadline={self._config.deadline:g} s"
        except Exception as error:  # noqa: BLE001 - a custom grader: masked, counted and shown
            detail = f"the grader raised {type(error).__name__}: {error}"
            own = not (isinstance(error, SandboxError) and error.retryable)
        verdict = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
        return GradedSample(verdict, grader_raised=own)


def record(
    group: int, member: int, rollout: Rollout, decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:  # Any: JSON
    """Return the rollout as JSON, see `RolloutRecord`.

    `turns` are those of the policy and of the tools in order, including special tokens. Each of the
    `calls` has the index of its turn. The policy may never have seen the answer to the last call.
    """
    task_id = rollout.row.task.get("task_id")
    return RolloutRecord(
        group=group,
        member=member,
        row=rollout.row.number,
        task_id=task_id if isinstance(task_id, str | int) else None,
        verdict=rollout.verdict,
        reward=rollout.verdict.reward,
        grader_raised=rollout.grader_raised,
        remembered=rollout.remembered,
        truncated=rollout.truncated,
        version=rollout.version,
        tokens={
            "prompt": len(rollout.row.prompt),
            "policy": sum(rollout.mask),
            "tools": len(rollout.mask) - sum(rollout.mask),
        },
        seconds=rollout.seconds,
        prompt=rollout.row.text,
        prefix=rollout.row.prefix,
        turns=_turns(rollout, decode),
        calls=rollout.calls,
    ).json()


def _turns(rollout: Rollout, decode: Callable[[Sequence[int]], str]) -> Iterator[Turn]:
    tokens = zip(rollout.mask, rollout.completion, strict=True)
    for own, each in itertools.groupby(tokens, lambda token: token[0]):
        ids = [token for _, token in each]
        yield Turn("assistant" if own else "tool", decode(ids), len(ids))
