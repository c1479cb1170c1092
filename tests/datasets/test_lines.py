"""Only a newline ends a line, in files of JSON lines and in an editor."""

import json
from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.integrations._lines import lines_of
from sandboxkit.integrations._tools._editor import Editor
from sandboxkit.integrations._training.plot import rows
from sandboxkit.integrations.rewards.doctor import read_tasks
from sandboxkit.testing import FakeProvider

OTHERS = "\v\f\r\x1c\x1d\x1e\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}"


@pytest.mark.parametrize("other", OTHERS)
def test_no_other_character_ends_a_line(other: str) -> None:
    assert lines_of(f"a{other}b\r\nc\n") == [f"a{other}b\r\n", "c\n"]


@pytest.mark.parametrize("other", OTHERS)
def test_a_row_of_json_lines_may_have_any_of_them_in_a_string(other: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"prompt": f"Add one.{other}Return it.", "reference": "x"}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", "utf-8")
    assert [each.task["prompt"] for each in read_tasks(file)] == [row["prompt"]]
    assert rows(file) == [row]


@pytest.mark.anyio
async def test_an_editor_inserts_where_grep_counts() -> None:
    async with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        await sandbox.write_file("/workspace/a", "one\ftwo\nthree\n")
        await Editor(sandbox).insert("/workspace/a", 1, "between")
        assert await sandbox.read_file("/workspace/a") == b"one\ftwo\nbetween\nthree\n"
