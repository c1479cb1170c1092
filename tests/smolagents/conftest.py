"""A model whose answers are written down, and a Session that must have no sandbox left."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from smolagents import ChatMessage, MessageRole, Model

from sandboxkit import Session


class ScriptedModel(Model):  # type: ignore[misc]  # smolagents ships no types
    """Answers with the next of `codes`; `seen` has what it was shown before each."""

    def __init__(self, *codes: str, before: Callable[[int], None] = lambda number: None) -> None:
        super().__init__(model_id="scripted")
        self.codes, self.before = list(codes), before
        self.seen: list[str] = []

    def generate(self, messages: list[Any], *given: object, **options: object) -> ChatMessage:
        self.before(len(self.seen))
        last = messages[-1]
        parts = last.content if isinstance(last.content, list) else [{"text": last.content}]
        self.seen.append("\n".join(part["text"] for part in parts))
        text = f"Thought: go on.\n<code>\n{self.codes.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


def living(session: Session) -> list[str]:
    infos = session.list().result()
    return [info.id for info in infos if info.tags.get("sandboxkit.session") == session.id]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local", env={"PIP_RETRIES": "0"}) as session:
        yield session
        deadline = time.monotonic() + 120
        while living(session):
            assert time.monotonic() < deadline
            time.sleep(0.05)
