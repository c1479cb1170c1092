"""Deep agents that work in a sandbox; their model is a script."""

import asyncio
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.base import LanguageModelInput
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable

from sandboxkit import ConfigurationError, Sandbox, SandboxTerminatedError, Session
from sandboxkit.integrations.deepagents import SandboxkitBackend
from tests import process_list


class Scripted(GenericFakeChatModel):
    """Says what it was given to say, whichever tools it has."""

    # Any: LangChain's own.
    def bind_tools(
        self, tools: Sequence[Any], **options: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Session("local") as session, session.sandbox() as sandbox:
        yield sandbox


def agent(sandbox: Sandbox, *calls: tuple[str, dict[str, object]], timeout: float = 120.0) -> Any:
    message: list[AIMessage | str] = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call{number}"}])
        for number, (name, args) in enumerate(calls)
    ]
    model = Scripted(messages=iter([*message, "done"]))
    return create_deep_agent(model=model, backend=SandboxkitBackend(sandbox, timeout=timeout))


def answers(state: dict[str, list[BaseMessage]]) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


TASK = {"messages": [("user", "make the test pass")]}
CALLS = tomllib.loads((Path(__file__).parent / "calls.toml").read_text())["calls"]
WORK = [(each["tool"], each["arguments"]) for each in CALLS]
WORK.append(("execute", {"command": "#" * 200_000}))


@pytest.mark.parametrize("run", ["invoke", "ainvoke"])
def test_an_agent_edits_runs_and_finds_files(sandbox: Sandbox, run: str) -> None:
    made = agent(sandbox, *WORK)
    state = made.invoke(TASK) if run == "invoke" else asyncio.run(made.ainvoke(TASK))
    found = answers(state)
    for call, answer in zip(CALLS, found, strict=False):
        assert [part for part in call["says"] if part not in answer] == []
    assert len(found[9]) < 100_000  # the framework keeps the rest in a file
    assert "pass it through stdin or a file" in found[-1]
    assert state["messages"][-1].text == "done"
    written = sandbox.read_file("/workspace/code/add.py").result()
    assert written == b"def add(a, b):\n    return sum((a, b))\n"


def test_the_end_of_the_sandbox_is_no_answer_to_the_model(sandbox: Sandbox) -> None:
    made = agent(sandbox, ("execute", {"command": "sleep 60"}))

    async def run() -> None:
        work = asyncio.create_task(made.ainvoke(TASK))
        while "sleep 60" not in (await sandbox.exec(process_list.COMMAND)).stdout:
            await asyncio.sleep(0.05)
        await sandbox.stop()
        await work

    with pytest.raises(SandboxTerminatedError):
        asyncio.run(run())


def test_a_command_has_the_time_of_its_backend(sandbox: Sandbox) -> None:
    backend = SandboxkitBackend(sandbox, timeout=0.5)
    before = time.monotonic()
    assert backend.execute("sleep 60").exit_code == 124
    assert time.monotonic() - before < 50
    assert backend.execute("sleep 1", timeout=0).exit_code == 0
    assert backend.id == sandbox.id
    with pytest.raises(ConfigurationError, match="seconds"):
        SandboxkitBackend(sandbox, timeout=-1)
