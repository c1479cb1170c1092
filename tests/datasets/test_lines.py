"""Only a newline ends a line, in files of JSON lines and in an editor."""

import io
import json
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._lines import lines_of
from sandboxkit.integrations._tools._editor import Editor
from sandboxkit.integrations._training.plot import rows
from sandboxkit.integrations.rewards.doctor import read_tasks
from sandboxkit.json_lines import json_lines, read_json_lines
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
    assert list(read_json_lines(file, "rows")) == [(1, row)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'\xef\xbb\xbf{"a": 1}\r\n\n \t\n[2]', "[(1, {'a': 1}), (4, [2])]"),
        (b"1\n{'a'}\n", "line 2: not JSON"),
        (b'1\n"\xff"\n', "line 2: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b"1\n" + b" " * 200_000, "line 2: more than 150000 bytes"),
        (None, "rows '.*' cannot be read"),
    ],
)
def test_an_error_names_the_file_and_the_line(
    content: bytes | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.json_lines._MOST_BYTES", 150_000)
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_bytes(content)
    if found.startswith("["):
        assert str(list(read_json_lines(file, "rows"))) == found
    else:
        with pytest.raises(ConfigurationError, match=found):
            list(read_json_lines(file, "rows"))


def test_a_line_that_was_not_written_to_its_end_is_left_out() -> None:
    assert list(json_lines(io.BytesIO(b"1\n2"), "", complete=True)) == [(1, 1)]
    assert list(json_lines(io.BytesIO(b"1\n2"), "")) == [(1, 1), (2, 2)]


@pytest.mark.anyio
async def test_an_editor_views_and_inserts_where_grep_counts() -> None:
    async with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        await sandbox.write_file("/workspace/a", "one\ftwo\nthree\n")
        view = "/workspace/a, lines 1 to 2 of 2:\n     1\tone\ftwo\n     2\tthree"
        assert await Editor(sandbox).view("/workspace/a") == view
        await Editor(sandbox).insert("/workspace/a", 1, "between")
        assert await sandbox.read_file("/workspace/a") == b"one\ftwo\nbetween\nthree\n"
