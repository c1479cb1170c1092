"""What cells print, show and raise: the same from every kind of kernel."""

import base64

import pytest

from sandboxkit import Sandbox
from sandboxkit.kernel import CellOutcome, CellResult, Kernel
from tests.kernel.conftest import CELLS, KINDS

# The first test waits until all packages are copied twice.
pytestmark = pytest.mark.timeout(900)
SECONDS = 60.0
PICTURE = base64.b64decode(CELLS["picture"])
RICH = CELLS["rich"].replace("PICTURE", repr(PICTURE))


def ran(kernel: Kernel, code: str) -> CellResult:
    result = kernel.run(code, timeout=SECONDS).result(2 * SECONDS)
    assert not result.ended, result
    return result


def pieces(result: CellResult) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in result.outputs]


def test_state_is_kept_and_the_last_expression_is_the_text(kept: Kernel) -> None:
    first = ran(kept, "import math\ndef twice(x): return 2 * x\nx = 20\nx")
    assert (first.text, first.outcome, first.error) == ("20", CellOutcome.OK, None)
    second = ran(kept, "x += 1\ntwice(x)")
    assert second.text == "42"
    assert first.execution_count is not None
    assert second.execution_count == first.execution_count + 1
    assert ran(kept, "_ + math.floor(0.5)").text == "42"
    for silent in ("x;", "y = x", "None", "", "# nothing", "import os"):
        assert (ran(kept, silent).text, ran(kept, silent).outputs) == (None, ()), silent
    assert ran(kept, "import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "'awaited'"


def test_values_have_html_pictures_and_json(kept: Kernel) -> None:
    ran(kept, RICH)
    rich = ran(kept, "Rich()")
    assert (rich.text, rich.png, rich.json) == ("rich", PICTURE, {"rich": [1, None]})
    assert rich.html == "<b>rich</b><script>alert(1)</script>"
    shown = ran(kept, "display(Rich(), {'a': 1})\nprint('after')\n[1, {'b': None}]")
    assert [kind for kind, _ in pieces(shown)] == ["display", "display", "stdout", "result"]
    assert (shown.png, shown.text, shown.json) == (PICTURE, "[1, {'b': None}]", [1, {"b": None}])
    for no_json in ("[1, (2,)]", "{1: 2}", "[float('nan')]", "{'a': object}"):
        assert ran(kept, no_json).json is None, no_json
    broken = ran(kept, "Broken()")
    assert (broken.text, broken.html, broken.outcome) == ("broken", None, CellOutcome.ERROR)
    assert broken.error is not None
    assert broken.error.name == "ZeroDivisionError"
    page = rich._repr_mimebundle_()["text/html"]
    assert base64.b64encode(PICTURE).decode() in page
    assert "<script>" not in page


def test_errors_have_name_message_and_traceback(kept: Kernel) -> None:
    ran(kept, "def divide(a, b):\n    return a / b\nkept_value = 5")
    failed = ran(kept, "print('before')\ndivide(1, 0)\nprint('never')")
    assert failed.outcome is CellOutcome.ERROR
    assert failed.error is not None
    assert (failed.error.name, failed.error.message) == ("ZeroDivisionError", "division by zero")
    assert "return a / b" in failed.error.traceback
    assert "\x1b" not in failed.error.traceback
    assert (failed.stdout, failed.stderr) == ("before\n", "")
    for code, name in CELLS["errors"]:
        result = ran(kept, code)
        assert result.error is not None, code
        assert result.error.name in name.split(), code
        assert result.outcome is CellOutcome.ERROR
    assert ran(kept, "import os, sys; sys.stdin.readline(), os.read(0, 1)").text == "('', b'')"
    assert ran(kept, "kept_value").text == "5"


def test_output_keeps_the_order_of_printing(kept: Kernel) -> None:
    result = ran(kept, CELLS["order"])
    expected: list[tuple[str, str]] = []
    printed = ""
    for turn in range(3):
        expected += [("stdout", f"{printed}out {turn}\n"), ("stderr", f"err {turn}\n")]
        expected += [("display", f"{turn}")]
        printed = "child\npiped\n"
    assert pieces(result)[:9] == expected
    assert pieces(result)[9] == ("stdout", f"{printed}from C\n")


def test_a_program_starts_when_what_was_printed_before_it_is_read(kept: Kernel) -> None:
    """It writes to the same pipes; it starts late at most where nobody reads, after a second."""
    assert float(ran(kept, CELLS["waits"]).text or 0) > 0.9


def test_text_is_unicode_whatever_the_code_prints(kept: Kernel) -> None:
    result = ran(kept, CELLS["unicode"])
    assert (result.stdout, result.text) == ("hé \U0001f600\nlone \\ud800\nraw \ufffd\n", "'é'")
    assert ran(kept, "# \U0001f600 é\n'\U0001f600' == '\\U0001f600'").text == "True"


def test_threads_and_children_that_print_late_are_in_the_next_result(kept: Kernel) -> None:
    assert ran(kept, CELLS["late"]).outputs == ()
    assert ran(kept, "go.set(); said.wait(60); print('now')").stdout == "late\nnow\n"
    assert ran(kept, CELLS["forks"]).stdout == "child\n"


def test_forged_lines_are_output_or_nothing(kept: Kernel) -> None:
    result = ran(kept, CELLS["forged"])
    assert (result.text, result.outcome) == ("'mine'", CellOutcome.OK)
    assert result.execution_count != 77
    assert '"count": 77' in result.stdout
    holder = "os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY)"
    assert "PermissionError" in str(ran(kept, f"import os; {holder}").error)
    assert ran(kept, "1 + 1").text == "2"


def test_output_over_the_limit_drops_its_middle_and_says_so(box: Sandbox, kind: str) -> None:
    with box.python(ipykernel=KINDS[kind], output_limit=1 << 16) as kernel:
        many = ran(kernel, "for i in range(20_000): print(i)\n'end'")
        assert many.truncated
        assert many.stdout.startswith("0\n1\n2\n")
        assert many.stdout.endswith("\n19998\n19999\n")
        assert 30_000 < len(many.stdout) <= 1 << 16
        assert many.text == "'end'"
        huge = ran(kernel, "class H:\n    _repr_html_ = lambda s: 'h' * 10**6\n'x' * 10**6")
        assert huge.truncated
        assert huge.text is not None
        assert 1000 < len(huge.text) <= 1 << 16
        dropped = ran(kernel, "H()")
        assert (dropped.html, dropped.truncated) == (None, True)
        shown = ran(kernel, "for i in range(1000): display(i)")
        assert shown.truncated
        assert [each.text for each in (shown.outputs[0], shown.outputs[-1])] == ["0", "999"]
        error = ran(kernel, "raise ValueError('v' * 10**6)").error
        assert error is not None
        assert len(error.message) + len(error.traceback) <= 1 << 18
        after = ran(kernel, "print('whole')")
        assert (after.stdout, after.truncated) == ("whole\n", False)


def test_magics_need_ipykernel(kept: Kernel) -> None:
    result = ran(kept, "%%bash\necho from bash")
    if kept.backend == "ipykernel":
        assert result.stdout == "from bash\n"
        assert ran(kept, "!echo shell").stdout.replace("\r", "") == "shell\n"
    else:
        assert result.error is not None
        assert result.error.name == "SyntaxError"


def test_open_figures_become_pictures(kept: Kernel) -> None:
    plots = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure();"
    result = ran(kept, plots)
    assert result.png is not None
    assert result.png.startswith(b"\x89PNG")
    assert ran(kept, "plt.get_fignums()").text == "[]"
