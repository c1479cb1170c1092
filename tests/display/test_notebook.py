"""A real notebook kernel: interrupting a cell kills its command, and values show themselves."""

import html
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxkit.display.page import CHARACTERS, LINES, Page, shortened

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

PATIENCE = 150.0
OPENING = (Path(__file__).parent / "opening.txt").read_text()
CELLS = tomllib.loads((Path(__file__).parent / "cells.toml").read_text())["cell"]


# Any, here and below: messages are JSON, and jupyter_client ships no types of its own.
class Book:
    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str, *, interrupt_at: str = "never") -> Any:
        """Run a cell, and interrupt the kernel as soon as it has printed `interrupt_at`.

        Returns what was `shown` of its result, and the name of its `error`.
        """
        message, printed = self.client.execute(code), ""
        cell = SimpleNamespace(shown={}, error=None)
        while True:
            got = self.client.get_iopub_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") != message:
                continue
            match got["msg_type"], got["content"]:
                case "stream", content:
                    printed += content["text"]
                    if interrupt_at in printed:
                        self.manager.interrupt_kernel()
                        self.client.kernel_info()  # a kernel that awaits is not woken by the signal
                        interrupt_at = "never"
                case (("execute_result" | "display_data"), content):
                    cell.shown = content["data"]
                case "error", content:
                    cell.error = content["ename"]
                case "status", {"execution_state": "idle"}:
                    return cell

    def value(self, code: str) -> str:
        cell = self.run(code)
        assert cell.error is None, cell
        return str(cell.shown["text/plain"])


@pytest.fixture(scope="module")
def book() -> Iterator[Book]:
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        opened = Book(manager, client)
        assert opened.run(OPENING).error is None
        yield opened
        assert opened.run("session.close().result(60)").error is None
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    "waiting", ["process.result()", "process.exception()", "next(lines)", "await process"]
)
def test_interrupting_a_cell_kills_its_command(book: Book, waiting: str) -> None:
    cell = book.run(
        "process = sandbox.exec(SLEEPS)\n"
        "lines = iter(process.stdout.lines())\n"
        "assert next(lines) == 'started'\n"
        f"says_when_it_waits()\n{waiting}",
        interrupt_at="waiting",
    )
    assert cell.error in ("KeyboardInterrupt", "CancelledError")
    assert book.value("is_killed()") == "True"


def test_a_time_limit_of_the_caller_leaves_the_command_running(book: Book) -> None:
    begin = "process = sandbox.exec(SLEEPS); assert next(iter(process.stdout.lines())) == 'started'"
    cell = book.run(f"{begin}\nprocess.result(0.2)")
    assert cell.error == "TimeoutError"
    assert book.value("'sleep' in names(), process.done()") == "(True, False)"
    assert "running" in book.run("process").shown["text/html"]
    assert book.value("process.kill(); process.result(60).returncode") == "137"


@pytest.mark.parametrize("case", CELLS, ids=lambda case: case["shows"])
def test_a_value_shows_itself(book: Book, case: dict[str, Any]) -> None:
    cell = book.run(case["code"])
    assert cell.error is None, cell
    page = cell.shown["text/html"]
    assert len(page) < 20_000
    assert len(cell.shown["text/plain"]) < 2_000
    assert case.get("plain", "") in cell.shown["text/plain"]
    elements = set(re.findall(r"<\s*([a-z]+)", page))
    assert elements <= {"b", "div", "pre", "span", "table", "td", "th", "tr"}
    output = html.unescape(re.sub("<[^>]*>", " ", page)).strip()
    assert [part for part in case["has"] if not re.search(part, output)] == [], output


def test_text_is_cut_by_lines_and_by_characters_and_says_how_much() -> None:
    assert shortened("a\nb") == "a\nb"
    many = shortened("\n".join(map(str, range(100_000))))
    assert len(many.splitlines()) <= LINES + 1
    assert many.startswith("0\n1\n")
    assert many.endswith("\n99999")
    wide = shortened("x" * 1_000_000)
    assert len(wide) < CHARACTERS + 100
    assert "996000 characters left out" in wide


def test_nothing_breaks_out_of_the_line_or_the_table() -> None:
    evil = "</td></table><script>x</script>\n\x1b]0;title\x07\x1b[2J\x00\u202e\r"
    page = Page(evil, evil, "bad", {evil: evil}, {evil: evil})
    assert page.html().count("<script") == 0
    assert page.html().count("</table>") == 1
    for shown in (page.html(), page.text()):
        assert not set("\x00\x1b\x07\r\u202e") & set(shown)
    assert "\n" not in page.text()
