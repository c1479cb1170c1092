"""SandboxEnvironment and tools in a real GRPOTrainer, with a scripted model."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import anyio
import pytest
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from sandboxkit import Sandbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl import EnvironmentPool, TooManyFailuresError
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from tests.trl.test_reward import Recorded, advantages_of_survivors
from tests.trl.tiny import FailingProvider, model, options, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo x >> log; wc -l < log"}}\n</tool_call>'


async def lines(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    """Scores by what the tool calls left: two lines, and a number unlike the others'."""
    text = (await sandbox.read_file("/workspace/log")).decode()
    assert text == "x\n"
    return Verdict(Outcome.FAILED, (int(sandbox.id[-4:], 16) % 97) / 100, "policy", "")


def run(folder: Path, pool: EnvironmentPool, steps: int = 5) -> tuple[GRPOTrainer, Recorded]:
    words = tokenizer(TEMPLATE.read_text())
    rows = [{"prompt": [{"role": "user", "content": f"do {i}"}], "task_id": i} for i in range(40)]
    trainer = GRPOTrainer(
        model=model(words),
        args=GRPOConfig(
            **options(
                str(folder),
                max_steps=steps,
                max_completion_length=1000,
                max_tool_calling_iterations=2,
            )
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=words,
        environment_factory=pool,
    )
    turns = 0

    def scripted(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        nonlocal turns
        turns += 1
        text = CALL if turns % 2 else "done"
        return [[*words(text)["input_ids"], words.eos_token_id] for _ in prompt_ids], None

    trainer._generate_single_turn = scripted
    seen = Recorded(trainer)
    trainer.train()
    return trainer, seen


def test_rollouts_use_tools_in_a_sandbox_each_and_are_scored(tmp_path: Path) -> None:
    provider = FakeProvider()
    with EnvironmentPool(lines, provider=provider) as pool:
        trainer, seen = run(tmp_path, pool)
        assert len(trainer.environments) == 8
    assert provider._boxes == {}
    logged = [each for each in trainer.state.log_history if "reward" in each]
    assert len(logged) == 5
    assert all(each["tools/call_frequency"] == 1 for each in logged)
    assert all(each["tools/failure_frequency"] == 0 for each in logged)
    for rewards, advantages in zip(seen.rewards, seen.advantages, strict=True):
        assert not rewards.isnan().any()
        wanted = advantages_of_survivors(rewards[:, 0].tolist(), 4)
        assert advantages.tolist() == pytest.approx(wanted, abs=1e-3)


def test_failed_environments_are_masked_and_the_others_keep_their_advantages(
    tmp_path: Path,
) -> None:
    with EnvironmentPool(lines, provider=FailingProvider(0.3)) as pool:
        _, seen = run(tmp_path, pool)
        assert pool.failed_rate == pytest.approx(0.3, abs=0.05)
    for rewards, advantages in zip(seen.rewards, seen.advantages, strict=True):
        column = rewards[:, 0].tolist()
        wanted = advantages_of_survivors(column, 4)
        assert advantages.tolist() == pytest.approx(wanted, abs=1e-3)


def test_too_many_failed_rollouts_raise(tmp_path: Path) -> None:
    with (
        EnvironmentPool(lines, provider=FailingProvider(1), window=4) as pool,
        pytest.raises(TooManyFailuresError, match="4 of the last 4"),
    ):
        run(tmp_path, pool, steps=1)


@pytest.fixture(params=["fake", "local"])
def backend(request: pytest.FixtureRequest) -> str | Provider:
    return FakeProvider() if request.param == "fake" else "local"


def test_every_tool_works_and_mistakes_are_shown(backend: str | Provider) -> None:
    async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
        good = await sandbox.read_file("/workspace/a.txt") == b"two\n" and row["task_id"] == 7
        return Verdict(Outcome.PASSED, 1.0) if good else Verdict(Outcome.FAILED, 0.0)

    with EnvironmentPool(judge, provider=backend, observation_limit=300) as pool:
        environment = pool()
        environment.reset(task_id=7, prompt="x")
        assert "created" in environment.write_file("/workspace/a.txt", "one\n")
        assert "one" in environment.read_file("/workspace/a.txt")
        assert "two" in environment.edit("/workspace/a.txt", "one", "two")
        assert environment.edit("/workspace/a.txt", "three", "x").startswith("ERROR")
        assert "exit status 3" in environment.bash("exit 3")
        assert len(environment.bash("seq 10000")) <= 300
        assert environment.get_reward() == 1.0
        assert environment.get_reward() == 1.0


def test_a_tool_call_that_hangs_is_killed_in_time(backend: str | Provider) -> None:
    async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
        return Verdict(Outcome.PASSED, 1.0)

    with EnvironmentPool(judge, provider=backend, tool_timeout=1) as pool:
        environment = pool()
        environment.reset()
        began = time.monotonic()
        assert "killed after 1 s" in environment.bash("echo begun; sleep 600")
        assert time.monotonic() - began < 30
        assert "again" in environment.bash("echo again")


def test_reset_does_not_wait_for_the_start() -> None:
    class Slow(FakeProvider):
        async def create(self, spec: Any) -> str:
            await anyio.sleep(1)
            return await super().create(spec)

    async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
        return Verdict(Outcome.PASSED, 1.0)

    with EnvironmentPool(judge, provider=Slow()) as pool:
        environments = [pool() for _ in range(8)]
        began = time.monotonic()
        for environment in environments:
            environment.reset()
        assert time.monotonic() - began < 0.9
        for environment in environments:
            assert environment.bash("echo up") == "up\n"
        assert time.monotonic() - began < 6
