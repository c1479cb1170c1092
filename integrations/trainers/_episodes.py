"""Episodes of many turns for trainers: one environment for each trajectory, and its reward or an error."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, Session
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe import Step
from sandboxkit.provider import Provider

# Any: messages of OpenAI's chat completions API.
Message = dict[str, Any]


class ClosableEnvironment(Protocol):
    """An environment for one trajectory, such as `SweEnv` or the result of `integrations.openenv.as_env`."""

    @property
    def schemas(self) -> Sequence[Message]: ...
    # Any: the task of a row.
    async def reset(self, *args: Any, **task: Any) -> Step: ...
    async def step(self, name: str, arguments: str | Mapping[str, Any]) -> Step: ...
    async def finish(self) -> Step: ...
    async def close(self) -> None: ...


class Episodes:
    """Makes the trajectories of one trainer. Each process opens one session, at its first trajectory.

    `make` returns a new environment that uses the session. The other options are those of a session.
    """

    def __init__(
        self,
        make: Callable[[Session], ClosableEnvironment],
        *,
        trainer: str,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if "on_infra" in options:
            raise ConfigurationError(
                f"on_infra={options['on_infra']!r}: {trainer} cannot leave a trajectory out or repeat it, so a "
                "failure of the infrastructure is always raised; remove on_infra"
            )
        self._make, self._trainer = make, trainer
        self._options = {"provider": provider, "max_concurrency": max_concurrency, **options}
        self._session: Session | None = None

    def begin(self) -> "AgentTrajectory":
        """Return a new trajectory; its `reset` starts the sandbox."""
        if self._session is None:
            self._session = Session(**self._options)
        return AgentTrajectory(self._make(self._session), self._trainer)

    def close(self) -> None:
        """Close the session, which stops the sandboxes of all trajectories; the next one opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.close().result()


class AgentTrajectory:
    """One episode. Its calls run in the order in which they were made, on our event loop.

    Every method but `close` raises ProviderUnavailableError if the infrastructure failed: no reward exists.
    """

    def __init__(self, env: ClosableEnvironment, trainer: str) -> None:
        self.env = env
        self._trainer = trainer
        self._last = Step("")
        self._turn = asyncio.Lock()

    @property
    def done(self) -> bool:
        """Whether the episode is over and graded."""
        return self._last.done

    # Any: the ground truth of a data set's row.
    def reset(self, truth: Any, prompt: Sequence[Message]) -> Operation[list[Message]]:
        """Begin the episode; `truth` has the arguments of the environment's `reset`, as a mapping or its JSON.

        Return the prompt, with the first observation at its end unless it is there already.
        """
        task = task_of(truth)

        async def run() -> list[Message]:
            text = await self._take(lambda: self.env.reset(**task))
            found = [dict(message) for message in prompt]
            if not text or any(text in str(message.get("content")) for message in found):
                return found
            if found and found[-1]["role"] == "user" and isinstance(found[-1]["content"], str):
                text = f"{found.pop()['content']}\n\n{text}"
            return [*found, {"role": "user", "content": text}]

        return Operation(run())

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> Operation[str]:
        """Execute a tool call of the model and return the observation. Its mistakes are observations."""
        return Operation(self._take(lambda: self.env.step(name, arguments)))

    def end(self) -> Operation[tuple[float, Verdict]]:
        """Grade the episode, unless it is graded, and return its reward and verdict."""

        async def run() -> tuple[float, Verdict]:
            await self._take(self.env.finish)
            assert self._last.reward is not None
            assert self._last.verdict is not None
            return self._last.reward, self._last.verdict

        return Operation(run())

    def close(self) -> Operation[None]:
        """Stop the sandbox, however far the episode is. Idempotent."""
        return Operation(self.env.close())

    async def _take(self, call: Callable[[], Any]) -> str:  # Any: a coroutine that returns a Step
        async with self._turn:
            if self.done:
                return "the episode was over before this call"
            step: Step = await call()
            if step.done and step.reward is None:
                detail = step.verdict.detail if step.verdict else step.observation
                raise ProviderUnavailableError(
                    f"{self._trainer}: a trajectory failed in the infrastructure: {detail}"
                )
            self._last = step
            return step.observation
