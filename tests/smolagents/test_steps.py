"""Single steps: what is printed, what a value becomes, and code that breaks its own process."""

import dataclasses
import datetime
import decimal
import pathlib
import tomllib
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

CASES = tomllib.loads((pathlib.Path(__file__).parent / "steps.toml").read_text())["case"]


@pytest.fixture
def executor(session: Session) -> Iterator[SandboxkitExecutor]:
    with SandboxkitExecutor(session, timeout=20, max_print_outputs_length=2000) as executor:
        yield executor


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_step_prints_and_returns_what_it_should(executor: SandboxkitExecutor, case: Any) -> None:
    for step in case["steps"]:
        code = step["code"].replace("MEDIA_TYPE", repr(MEDIA_TYPE))
        if "error" in step:
            with pytest.raises(InterpreterError, match=step["error"]):
                executor(code)
            begins = "before" if "before" in code else ""
            assert executor.state["_print_outputs"].startswith(begins)
            continue
        output = executor(code)
        given = repr(output.output)
        assert given == step.get("gives", given)
        assert given.startswith(step.get("value_begins", ""))
        assert output.logs == step.get("prints", output.logs)
        assert output.logs.startswith(step.get("begins", ""))
        assert output.logs.endswith(step.get("ends", ""))
        assert len(output.logs) < step.get("below", 100)
    assert executor("6 * 7").output == 42


def test_variables_that_are_sent_are_the_codes(executor: SandboxkitExecutor) -> None:
    executor.send_tools({})
    executor.send_variables({"when": datetime.date(2026, 1, 2), "raw": b"\0\xff"})
    found = executor("import datetime as d\n(when + d.timedelta(1), raw)").output
    assert found == (datetime.date(2026, 1, 3), b"\0\xff")


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


def test_code_that_runs_out_of_memory_is_told_so() -> None:
    require_docker()
    with Session("docker", memory_mb=100) as session, SandboxkitExecutor(session) as executor:
        with pytest.raises(InterpreterError, match="ran out of the sandbox's memory"):
            executor("x = b'x' * (500 << 20)")
        assert executor("1").output == 1
