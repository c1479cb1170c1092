"""What a model says by script, a judge of what it did, and a provider that knows who works at once."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from sandboxkit import Sandbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Command, Exit


def script(training: Any, *turns: str) -> list[float]:
    """Let every rollout say these turns, again and again; returns when they were asked for."""
    times: list[float] = []
    words = training.processing_class

    def generate(prompt_ids: list[Any], *_: Any, **__: Any) -> tuple[list[Any], None]:
        text = turns[len(times) % len(turns)]
        times.append(time.monotonic())
        ids = [*words(text)["input_ids"], words.eos_token_id]
        return [list(ids) for _ in prompt_ids], None

    training._generate_single_turn = generate
    return times


def call(name: str, **arguments: str) -> str:
    answer = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{answer}\n</tool_call>"


def sandboxes_of(session: str) -> list[str]:
    """The ids of those on the local provider that a session has."""
    listed = Sandbox.list(provider="local").result()
    return [info.id for info in listed if info.tags.get("sandboxkit.session") == session]


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    found = (await sandbox.read_file("/workspace/answer")).decode().strip()
    if found == row["want"]:
        return Verdict(Outcome.PASSED, 1.0)
    return Verdict(Outcome.FAILED, 0.0, "policy", f"{found!r}")


TURNS = (
    call("write_file", path="/workspace/answer", content="40"),
    call("edit", path="/workspace/answer", old="40", new="41"),
    call("bash", command="echo $(($(cat answer) + 1)) > answer; cat answer"),
    "done",
)
LONG = {"max_completion_length": 1500, "max_tool_calling_iterations": 4}
CHAT = [{"prompt": [{"role": "user", "content": "fix it."}], "want": "42"}] * 16


class Meeting(FakeProvider):
    """Runs no command before the first commands of `number` sandboxes have been asked for."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._first, self._seen = asyncio.Barrier(number), set[str]()

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if sandbox_id not in self._seen:
            self._seen.add(sandbox_id)
            await self._first.wait()
        return await super().exec(sandbox_id, command, output)
