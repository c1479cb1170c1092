"""Tasks of `Program` from rows of public data sets; no data set is downloaded."""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Row = Mapping[str, Any]  # Any: a row of a data set
Task = dict[str, Any]  # Any: the keys of `Program`'s tasks


def load_live_code_bench(row: Row) -> Task:
    """Return the task of a row of LiveCodeBench (code_generation): public and private cases.

    Private cases may be compressed: base64 of zlib of a pickled JSON text, which is read without running
    anything of it. Raises ConfigurationError for rows whose cases call a function, which
    `HostCompare` grades, and for text that is not as described.
    """
    cases = [
        *_listed(row, "public_test_cases"),
        *(_listed(row, "private_test_cases") if row.get("private_test_cases") else ()),
    ]
    for case in cases:
        if case.get("testtype", "stdin") != "stdin":
            raise ConfigurationError(
                f"the row's testtype={case['testtype']!r} is for HostCompare: Program grades 'stdin'"
            )
    return _task([(case["input"], case["output"]) for case in cases])


def _listed(row: Row, name: str) -> list[dict[str, str]]:
    value = row.get(name)
    try:
        if isinstance(value, str):
            text = value if value.lstrip()[:1] == "[" else _unpacked(value)
            value = json.loads(text)
    except (ValueError, zlib.error, pickle.UnpicklingError, EOFError) as error:
        raise ConfigurationError(f"the row's {name} cannot be read: {error}") from error
    if not isinstance(value, list) or not all(
        isinstance(each, Mapping) and {"input", "output"} <= each.keys() for each in value
    ):
        raise ConfigurationError(f"the row's {name} is no list of objects with input and output")
    return [dict(each) for each in value]


class _TextUnpickler(pickle.Unpickler):
    """Reads a pickled text, and refuses every class and function that a pickle may name."""

    def find_class(self, module: str, name: str) -> Any:  # Any: pickle's own interface
        """Raise UnpicklingError."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpacked(text: str) -> str:
    content = zlib.decompress(base64.b64decode(text, validate=True))
    value = _TextUnpickler(io.BytesIO(content)).load()
    if not isinstance(value, str):
        raise pickle.UnpicklingError(f"it is a {type(value).__name__}, not text")
    return value


def load_code_contests(row: Row) -> Task:
    """Return the task of a row of CodeContests or CodeContests+.

    Its public, private and generated tests are cases. A `checker` is a testlib program, which needs
    your own testlib.h: `dataclasses.replace(task["checker"], files={"testlib.h": text})`. Output is
    compared by words where there is none.
    """
    pairs: list[tuple[str, str]] = []
    for name in ("public_tests", "private_tests", "generated_tests", "test_cases"):
        value = row.get(name)
        if isinstance(value, Mapping):
            pairs += _zipped(value.get("input"), value.get("output"), name)
        elif value:
            pairs += [(each["input"], each["output"]) for each in value]
    task = _task(pairs, checker="tokens")
    if row.get("checker"):
        task["checker"] = JudgeProgram(row["checker"])
    limit = row.get("time_limit")
    if isinstance(limit, Mapping):
        task["time_limit"] = limit.get("seconds", 0) + limit.get("nanos", 0) / 1e9 or None
    elif limit:
        task["time_limit"] = limit
    if row.get("memory_limit_bytes"):
        task["memory_limit_mb"] = max(row["memory_limit_bytes"] >> 20, 1)
    return {name: value for name, value in task.items() if value is not None}


def load_taco(row: Row) -> Task:
    """Return the task of a row of TACO or APPS, whose `input_output` is JSON of inputs and outputs.

    Raises ConfigurationError for a row with `fn_name`, which `HostCompare` grades.
    """
    value = row.get("input_output")
    try:
        both = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigurationError(f"the row's input_output cannot be read: {error}") from error
    if not isinstance(both, Mapping):
        raise ConfigurationError("the row's input_output is no object with inputs and outputs")
    if both.get("fn_name"):
        raise ConfigurationError(
            f"the row's fn_name={both['fn_name']!r} is for HostCompare: Program grades stdin"
        )
    task = _task(_zipped(both.get("inputs"), both.get("outputs"), "input_output"))
    limit = _leading_number(row.get("time_limit"))
    return {**task, "time_limit": limit} if limit else task


load_apps = load_taco


def _leading_number(value: object) -> float | None:
    """Return the seconds of a limit such as "2.0 seconds"; None for none."""
    try:
        return float(str(value).split()[0])
    except (ValueError, IndexError):
        return None


def _zipped(inputs: object, outputs: object, name: str) -> list[tuple[str, str]]:
    if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
        return [(_text(a), _text(b)) for a, b in zip(inputs, outputs, strict=True)]
    raise ConfigurationError(f"the row's {name} has no lists of as many inputs as outputs")


def _text(value: object) -> str:
    """Return a case's text; some rows have a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _task(pairs: Sequence[tuple[str, str]], checker: str = "lines") -> Task:
    if not pairs:
        raise ConfigurationError("the row has no cases")
    return {"cases": [{"stdin": a, "stdout": b} for a, b in pairs], "checker": checker}
