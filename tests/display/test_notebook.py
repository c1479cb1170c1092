"""A real notebook kernel: interrupting a cell kills its command, and values show themselves."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.display.page import CHARACTERS, LINES, Page, shortened

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

PATIENCE = 150.0
OPENING = (Path(__file__).parent / "opening.txt").read_text()


# Any, here and below: messages are JSON, and jupyter_client ships no types of its own.
@dataclass
class Cell:
    """What a cell showed: its printed text, its result and its error."""

    printed: str = ""
    shown: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Book:
    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def run(self, code: str, *, interrupt_at: str | None = None) -> Cell:
        """Run a cell, and interrupt the kernel as soon as it has printed `interrupt_at`."""
        message, cell = self.client.execute(code), Cell()
        while True:
            got = self.client.get_iopub_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") != message:
                continue
            kind, content = got["msg_type"], got["content"]
            if kind == "stream":
                cell.printed += content["text"]
                if interrupt_at is not None and interrupt_at in cell.printed:
                    self.manager.interrupt_kernel()
                    self.client.kernel_info()  # a kernel that awaits is not woken by the signal
                    interrupt_at = None
            elif kind in ("execute_result", "display_data"):
                cell.shown = content["data"]
            elif kind == "error":
                cell.error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
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
    cell = book.run(
        "process = sandbox.exec(SLEEPS)\n"
        "assert next(iter(process.stdout.lines())) == 'started'\n"
        "process.result(0.2)"
    )
    assert cell.error == "TimeoutError"
    assert book.value("'sleep' in names(), process.done()") == "(True, False)"
    assert "running" in book.run("process").shown["text/html"]
    assert book.value("process.kill(); process.result(60).returncode") == "137"


def looked_at(cell: Cell) -> str:
    """The text of what a cell showed, which holds no element but those of a page."""
    assert cell.error is None, cell
    page = cell.shown["text/html"]
    assert len(page) < 20_000
    assert len(cell.shown["text/plain"]) < 2_000
    elements = set(re.findall(r"<\s*([a-z]+)", page))
    assert elements <= {"b", "div", "pre", "span", "table", "td", "th", "tr"}
    return html.unescape(re.sub("<[^>]*>", " ", page)).strip()


def test_a_result_shows_its_status_and_its_output_escaped_and_bounded(book: Book) -> None:
    cell = book.run(
        "sandbox.exec(['sh', '-c', '''echo '<script>alert(1)</script>'; seq 100000;"
        " printf '\\\\033[31mred\\\\033[0m' >&2; exit 3''']).result(60)"
    )
    output = looked_at(cell)
    assert "status 3" in output
    assert "<script>alert(1)</script>" in output
    assert "characters left out" in output
    assert "100000" in output
    assert output.endswith("red")
    assert "status 3" in cell.shown["text/plain"]


def test_a_sandbox_shows_its_state_its_tags_and_the_time_left(book: Book) -> None:
    output = looked_at(book.run("sandbox"))
    assert "running" in output
    assert "book:<b>1</b>" in output
    assert "sandboxkit." not in output
    assert re.search(r"5\d min", output), output
    assert book.value("sandbox.id").strip("'") in output
    assert "running" in looked_at(book.run("session.list(tags='book:<b>1</b>').result(60)[0]"))
    assert "not started" in looked_at(book.run("other = session.sandbox(); other"))
    assert "stopped" in looked_at(book.run("other.stop().result(60); other"))


def test_operations_and_verdicts_show_how_they_ended(book: Book) -> None:
    assert "status 0" in looked_at(book.run("done = sandbox.exec(['true']); done.result(60); done"))
    failed = book.run("lost = sandbox.read_file('/<i>'); lost.exception(60); lost")
    assert "SandboxFileNotFoundError" in looked_at(failed)
    verdict = "from sandboxkit.integrations.rewards import Outcome, Verdict\n"
    graded = book.run(f"{verdict}Verdict(Outcome.FAILED, 0.5, detail='<i>no</i>')")
    assert "failed" in looked_at(graded)
    assert "<i>no</i>" in looked_at(graded)
    masked = book.run(f"{verdict}Verdict(Outcome.INFRA_ERROR, 0.0, 'infra')")
    assert "mask the sample" in looked_at(masked)


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
