"""Converts rows of public data sets to tasks of `Program`; nothing is downloaded."""

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import plain
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Row = Mapping[str, Any]  # Any: a row of a data set
Task = dict[str, Any]  # Any: the keys of `Program`'s tasks
_MOST_BYTES = 1 << 30
"""Largest size of a row's cases, decompressed. LiveCodeBench has rows of a few hundred million bytes."""
_TEXT_ALONE = {
    *("PROTO", "FRAME", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"),
    *("MEMOIZE", "BINPUT", "PUT", "STOP"),
}


def load_live_code_bench(row: Row) -> Task:
    """Convert a row of LiveCodeBench (code_generation), with its public and private cases, to a task.

    Private cases may be compressed (a pickled JSON text, then zlib, then base64); they are decoded
    without running pickled code. Raises ConfigurationError for cases that cannot be decoded, and for a
    row whose cases call a function, because `HostCompare` grades those.
    """
    row = plain(row)
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
    except (ValueError, RecursionError, zlib.error) as error:
        raise ConfigurationError(f"the row's {name} cannot be read: {error}") from error
    if not isinstance(value, list) or not all(
        isinstance(each, Mapping) and {"input", "output"} <= each.keys() for each in value
    ):
        raise ConfigurationError(f"the row's {name} is no list of objects with input and output")
    return [dict(each) for each in value]


def _unpacked(text: str) -> str:
    reader = zlib.decompressobj()
    content = reader.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    if reader.unconsumed_tail:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    # Read and not run: the pickle of a string has no other instructions.
    found = [(code.name, value) for code, value, _ in pickletools.genops(content)]
    names = {name for name, _ in found}
    texts = [value for name, value in found if "UNICODE" in name]
    if len(texts) != 1 or not isinstance(texts[0], str) or not names <= _TEXT_ALONE:
        raise ValueError(
            f"it is no text: it names {'.'.join(map(str, texts[:2])) or sorted(names)}"
        )
    return texts[0]


def load_code_contests(row: Row) -> Task:
    """Convert a row of CodeContests or CodeContests+ to a task.

    The public, private and generated tests become the cases. A row's `checker` is a testlib program,
    which needs your own testlib.h: `dataclasses.replace(task["checker"], files={"testlib.h": text})`.
    Without a checker, output is compared word by word. Raises ConfigurationError for a row without cases.
    """
    row = plain(row)
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
    """Convert a row of TACO or APPS, whose `input_output` is JSON with inputs and outputs, to a task.

    Raises ConfigurationError for cases that cannot be read, and for a row with `fn_name`, because
    `HostCompare` grades those.
    """
    row = plain(row)
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
    """Return the number at the start of text such as "2.0 seconds"; None if there is none."""
    try:
        return float(str(value).split()[0])
    except (ValueError, IndexError):
        return None


def _zipped(inputs: object, outputs: object, name: str) -> list[tuple[str, str]]:
    if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
        return [(_text(a), _text(b)) for a, b in zip(inputs, outputs, strict=True)]
    raise ConfigurationError(f"the row's {name} has no lists of inputs and outputs of equal length")


def _text(value: object) -> str:
    """Return a case's text; join the list of lines that some rows have instead."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _task(pairs: Sequence[tuple[str, str]], checker: str = "lines") -> Task:
    if not pairs:
        raise ConfigurationError("the row has no cases")
    return {"cases": [{"stdin": a, "stdout": b} for a, b in pairs], "checker": checker}
