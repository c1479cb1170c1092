"""Single steps: what is printed, what a value becomes, and code that breaks its own process."""

import dataclasses
import datetime
import decimal
import pathlib
from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Any

import numpy
import PIL.Image
import pytest
from smolagents.local_python_executor import InterpreterError
from smolagents.serialization import SafeSerializer

from sandboxkit import Session
from sandboxkit.integrations.smolagents import SandboxkitExecutor
from sandboxkit.integrations.smolagents._in_sandbox import MEDIA_TYPE, encode
from tests.docker_here import require_docker


@pytest.fixture
def executor(session: Session) -> Iterator[SandboxkitExecutor]:
    with SandboxkitExecutor(session, timeout=20, max_print_outputs_length=2000) as executor:
        yield executor


def test_all_that_is_printed_comes_in_order_and_limits(executor: SandboxkitExecutor) -> None:
    output = executor(
        "import os, subprocess, sys\n"
        "print('one')\n"
        "os.write(1, b'two\\n')\n"
        "subprocess.run(['echo', 'three'])\n"
        "print('four', file=sys.stderr)\n"
        "try: input()\n"
        "except EOFError: print('five')"
    )
    assert (output.output, output.logs) == (None, "one\ntwo\nthree\nfour\nfive\n")
    output = executor("print('x' * 3_000_000, 'the end')")
    assert len(output.logs) < 4000
    assert output.logs.startswith("xxx")
    assert output.logs.endswith("the end\n")
    assert executor("1 + 1").logs == ""


def test_a_value_is_plain_data_or_its_text(executor: SandboxkitExecutor) -> None:
    assert executor("(1, {'a': {2.5}})").output == (1, {"a": {2.5}})
    assert executor("object").output == "<class 'object'>"
    assert executor("'x' * 3_000_000").output.startswith("'xxx")
    assert executor("y = 5").output is None
    with pytest.raises(InterpreterError, match="SyntaxError"):
        executor("y = = 5")
    executor.send_tools({})
    executor.send_variables({"when": datetime.date(2026, 1, 2), "raw": b"\0\xff"})
    assert executor("import datetime as d\n(when + d.timedelta(1), raw, y)").output == (
        datetime.date(2026, 1, 3),
        b"\0\xff",
        5,
    )


@dataclasses.dataclass
class Point:
    x: int
    y: object


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (True, True),
        (Level.HIGH, 3),
        (Colour.RED, "red"),
        (OrderedDict(a=[None, 1.5]), {"a": [None, 1.5]}),
        ({"__type__": "bytes", "data": "x"}, {"__type__": "bytes", "data": "x"}),
        ({(1, 2): frozenset({3})}, {(1, 2): frozenset({3})}),
        (decimal.Decimal("1.10"), decimal.Decimal("1.10")),
        (datetime.datetime(2026, 1, 2, 3), datetime.datetime(2026, 1, 2, 3)),
        (datetime.timedelta(hours=1), datetime.timedelta(hours=1)),
        (pathlib.PurePosixPath("/a"), pathlib.Path("/a")),
        (complex(1, 2), complex(1, 2)),
        (numpy.float32(0.5), 0.5),
        (Point(1, (2,)), {"__dataclass__": "Point", "__module__": __name__, "x": 1, "y": (2,)}),
    ],
    ids=repr,
)
def test_what_is_encoded_is_what_smolagents_reads(value: Any, read: Any) -> None:
    found = SafeSerializer.from_json_safe(encode(value))
    assert (type(found), found) == (type(read), read)


def test_arrays_and_pictures_leave_a_sandbox_too() -> None:
    array = numpy.arange(6, dtype="int16").reshape(2, 3)
    found = SafeSerializer.from_json_safe(encode(array))
    assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
    picture = SafeSerializer.from_json_safe(encode(PIL.Image.new("RGB", (2, 3), "red")))
    assert (picture.size, picture.getpixel((1, 1))) == ((2, 3), (255, 0, 0))
    with pytest.raises(TypeError, match="a list_iterator cannot be sent out of the sandbox"):
        encode(iter([1]))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os._exit(3)", "ended with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("exit(4)", "SystemExit: 4"),
        ("class E(Exception):\n    def __str__(self): return 1\nraise E", "E"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=["exits", "killed", "SystemExit", "unprintable", "interrupted"],
)
def test_code_that_breaks_its_process_is_told_so_and_the_next_step_runs(
    executor: SandboxkitExecutor, code: str, expected: str
) -> None:
    with pytest.raises(InterpreterError, match=expected):
        executor(f"print('before')\n{code}")
    assert executor.state["_print_outputs"].startswith("before")
    assert executor("6 * 7").output == 42


def test_code_that_runs_out_of_memory_is_told_so() -> None:
    require_docker()
    with Session("docker", memory_mb=100) as session, SandboxkitExecutor(session) as executor:
        with pytest.raises(InterpreterError, match="ran out of the sandbox's memory"):
            executor("x = b'x' * (500 << 20)")
        assert executor("1").output == 1


def test_a_fork_of_the_code_answers_nothing(executor: SandboxkitExecutor) -> None:
    output = executor("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nbool(child)")
    assert output.output is True
    assert executor("child > 0").output is True


FORGED = """
class FinalAnswer(BaseException): pass
class Forged:
    def _repr_mimebundle_(self, **asked):
        return {%r: {'__type__': 'Decimal', 'data': []}}
display(Forged())
raise FinalAnswer
"""


def test_code_that_forges_its_final_answer_fails_by_itself(executor: SandboxkitExecutor) -> None:
    with pytest.raises(InterpreterError, match="is not plain data"):
        executor(FORGED % MEDIA_TYPE)
    assert executor("6 * 7").output == 42


def test_names_of_the_code_do_not_matter_to_how_values_leave(executor: SandboxkitExecutor) -> None:
    assert executor("display = encode = sys = types = None\n_ = 1\n(2, {3})").output == (2, {3})
