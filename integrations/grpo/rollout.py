"""Rollouts: completions of one prompt, alone or in turns with a sandbox's tools, and their rewards."""

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from sandboxkit import ConfigurationError, SandboxError, Session
from sandboxkit.integrations._tools import ToolResult
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.engines import Engine, Request
from sandboxkit.integrations.grpo.turns import Answers, call, calls_in
from sandboxkit.integrations.grpo.workplace import Workplace, own_sandbox, swe_task
from sandboxkit.integrations.rewards import (
    Grader,
    Outcome,
    Phase,
    Verdict,
    extract_code,
    verdict_of,
)
from sandboxkit.integrations.swe import Task

__all__ = ["Group", "Rollout", "Rollouts"]

_UNGRADED = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "not graded")


@dataclass(slots=True)
class Rollout:
    """One completion, turn by turn; `completion`, `mask` and `logp` go token by token."""

    row: Row
    completion: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    """Whether the policy wrote it."""
    logp: list[float] = field(default_factory=list)
    version: int | None = None
    """Of the oldest weights that wrote a part; None until one has."""
    verdict: Verdict = _UNGRADED
    grader_raised: bool = False
    tool_calls: int = 0
    sandbox_seconds: float = 0.0
    """Spent on tools and grading, with all waiting."""
    used_sandbox: bool = False
    """For a tool call, for its work or for its grade; an equal one's grade takes none."""

    @property
    def needed_sandbox(self) -> bool:
        """Whether it tells how the infrastructure is: it had a sandbox, or could not have one."""
        return self.used_sandbox or self.verdict.reward is None

    def wrote(self, ids: tuple[int, ...], logp: tuple[float, ...], version: int) -> None:
        """The policy's tokens."""
        self.completion += ids
        self.mask += [True] * len(ids)
        self.logp += logp
        self.version = version if self.version is None else min(self.version, version)

    def heard(self, ids: tuple[int, ...]) -> None:
        """A tool's tokens, which carry no loss."""
        self.completion += ids
        self.mask += [False] * len(ids)
        self.logp += [0.0] * len(ids)


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one prompt."""

    number: int
    """Its position in the stream of prompts."""
    rollouts: tuple[Rollout, ...]

    @property
    def version(self) -> int | None:
        """Of the oldest weights in it; None where none wrote anything."""
        known = [r.version for r in self.rollouts if r.version is not None]
        return min(known, default=None)

    @property
    def rewards(self) -> list[float | None]:
        """None where the infrastructure, or the grader, failed."""
        return [rollout.verdict.reward for rollout in self.rollouts]

    @property
    def teaches(self) -> bool:
        """Whether two known rewards differ."""
        return len({reward for reward in self.rewards if reward is not None}) > 1


class Rollouts:
    """Makes rollouts. Runs on one event loop; `close` gives up what is still being graded.

    An engine's error is raised; what goes wrong with a sandbox or in the grader is the verdict
    INFRA_ERROR, which has no reward.
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
        """With `tasks` a rollout works on the one that its row names."""
        self._config, self._tokenizer, self._stop = config.rollout, tokenizer, stop
        self._seed, self._remember = config.run.seed, config.grading.remember
        self._engine, self._session, self._tasks = engine, session, tasks or {}
        self._room = asyncio.Semaphore(config.grading.max_concurrency)
        self._grader: Grader = config.grader()
        self._answers = Answers(tokenizer, stop) if config.rollout.max_turns > 1 else None
        self._graded: dict[tuple[int, str], asyncio.Task[tuple[Verdict, bool]]] = {}

    async def group(self, row: Row, number: int) -> Group:
        """The group at a position of the stream of prompts, all its rollouts at once."""
        async with asyncio.TaskGroup() as running:
            tasks = [
                running.create_task(self.one(row, f"{self._seed} {number} {member}"))
                for member in range(self._config.group_size)
            ]
        return Group(number, tuple(task.result() for task in tasks))

    async def one(self, row: Row, seed: str) -> Rollout:
        """One rollout; sampling depends on `seed` and the weights alone."""
        rollout = Rollout(row)
        numbers = random.Random(seed)
        if self._answers is None:
            await self._turn(rollout, numbers)
            submission: str | Verdict | None = self._submission(rollout)
        else:
            submission = await self._episode(rollout, numbers)
        if submission is None:
            rollout.verdict = Verdict(Outcome.FAILED, 0.0, "policy", "no code in the completion")
        elif isinstance(submission, Verdict):
            rollout.verdict = submission
        else:
            begun = time.monotonic()
            rollout.verdict, rollout.grader_raised, own = await self._grade(row, submission)
            rollout.used_sandbox |= own
            rollout.sandbox_seconds += time.monotonic() - begun
        return rollout

    def text(self, rollout: Rollout) -> str:
        """What was written and heard, as text."""
        return str(self._tokenizer.decode(rollout.completion, skip_special_tokens=True))

    def close(self) -> None:
        """Cancel what is still being graded. On the loop that runs it."""
        for task in self._graded.values():
            task.cancel()

    async def _turn(self, rollout: Rollout, numbers: random.Random) -> str:
        """Sample one turn and return its text, special tokens and all."""
        done = await self._engine.generate(
            Request(
                rollout.row.prompt + tuple(rollout.completion),
                self._config.max_completion_tokens - len(rollout.completion),
                self._config.temperature,
                numbers.getrandbits(63),
            )
        )
        rollout.wrote(done.ids, done.logp, done.version)
        return str(self._tokenizer.decode(done.ids, skip_special_tokens=False))

    async def _episode(self, rollout: Rollout, numbers: random.Random) -> str | Verdict | None:
        """All turns at a workplace of the rollout's own; it is gone before its work is graded."""
        try:
            async with self._workplace(rollout.row) as place:
                await self._turns(rollout, place, numbers)
                if not place.leaves_work:
                    return self._submission(rollout)
                begun, rollout.used_sandbox = time.monotonic(), True
                await place.ready()
                async with asyncio.timeout(place.deadline):
                    work = await place.work()
                rollout.sandbox_seconds += time.monotonic() - begun
                return work
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

    def _workplace(self, row: Row) -> AbstractAsyncContextManager[Workplace]:
        if self._tasks:
            return swe_task(self._session, self._tasks, row, self._config, self._room)
        return own_sandbox(self._session, row, self._config, self._room)

    async def _turns(self, rollout: Rollout, place: Workplace, numbers: random.Random) -> None:
        assert self._answers is not None
        for turn in range(self._config.max_turns):
            written = calls_in(await self._turn(rollout, numbers))
            if not written:
                return
            begun, rollout.used_sandbox = time.monotonic(), True
            await place.ready()
            results: list[ToolResult] = []
            over = time.monotonic() + place.deadline
            for each in written:
                if time.monotonic() > over:
                    results.append(ToolResult("ERROR: not made: a turn's time is over", error=True))
                    break
                # For each call alone, which ends it itself long before: many are the policy's.
                async with asyncio.timeout(place.deadline):
                    results += await call(place, [each])
                if results[-1].submitted:
                    break
            rollout.sandbox_seconds += time.monotonic() - begun
            rollout.tool_calls += len(results)
            if results[-1].submitted or turn + 1 == self._config.max_turns:
                return
            answer = self._answers.ids(results)
            left = self._config.max_completion_tokens - len(rollout.completion)
            if rollout.completion[-1] not in self._stop or len(answer) >= left:
                return
            rollout.heard(answer)

    def _submission(self, rollout: Rollout) -> str | None:
        own = [i for i, m in zip(rollout.completion, rollout.mask, strict=True) if m]
        text = str(self._tokenizer.decode(own, skip_special_tokens=True))
        return (
            rollout.row.prefix + text if self._config.submission == "text" else extract_code(text)
        )

    async def _grade(self, row: Row, submission: str) -> tuple[Verdict, bool, bool]:
        """As `judge`, and whether it was asked for this one."""
        if not self._remember:
            return *await self.judge(row, submission), True
        key, begun = (row.number, submission), time.monotonic()
        while True:
            task = self._graded.get(key)
            own = task is None
            if task is None:
                task = self._graded[key] = asyncio.create_task(self.judge(row, submission))
            verdict, raised = await asyncio.shield(task)
            if verdict.reward is None and self._graded.get(key) is task:
                del self._graded[key]
            # A failure is of one rollout alone: the next equal one has it graded again. Together
            # they may be most of a group, whose baseline would be that of the others.
            late = time.monotonic() - begun > self._config.deadline
            if own or raised or late or verdict.reward is not None:
                break
        if len(self._graded) > self._remember:
            del self._graded[next(iter(self._graded))]
        return verdict, raised, own

    async def check(self, row: Row) -> Verdict:
        """Grade what was there before: sandboxes and grader work if there is a reward."""
        if not self._tasks:
            verdict, _ = await self.judge(row, row.prefix)
            return verdict
        async with self._workplace(row) as place:
            await place.ready()
            work = await place.work()
        assert isinstance(work, Verdict)
        return work

    async def judge(self, row: Row, submission: str) -> tuple[Verdict, bool]:
        """The verdict, and whether the grader raised instead of giving one."""
        try:
            async with self._room, asyncio.timeout(self._config.deadline):
                return await self._grader.grade(self._session, submission, row.task), False
        except TimeoutError:
            detail = f"not graded within rollout.deadline={self._config.deadline:g} s"
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail), False
        except Exception as error:  # noqa: BLE001 - somebody's grader: masked, counted and shown
            detail = f"the grader raised {type(error).__name__}: {error}"
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail), True
