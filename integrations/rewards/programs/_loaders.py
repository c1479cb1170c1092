"""Converts rows of public data sets to tasks of `Program` and `HostCompare`; nothing is downloaded."""

import base64
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import parsed, plain_row
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Row = Mapping[str, Any]  # Any: a row of a data set
Task = dict[str, Any]  # Any: the keys of a grader's tasks
_MOST_BYTES = 1 << 30
"""Largest size of a row's cases, decompressed. LiveCodeBench has rows of a few hundred million bytes."""
_COLUMNS = {
    "load_live_code_bench": ("public_test_cases", "private_test_cases"),
    "load_code_contests": ("public_tests", "private_tests", "generated_tests", "test_cases"),
    "load_taco": ("input_output",),
    "Program, without a loader": ("cases",),
    "HostCompare, without a loader": ("test_list", "tests", "test"),
    "load_codeforces": ("official_tests", "examples"),
}
"""Columns with cases, by what reads them."""
_TEXT_ALONE = {
    *("PROTO", "FRAME", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"),
    *("MEMOIZE", "BINPUT", "PUT", "STOP"),
}


_LIMIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:s|seconds?|mb|megabytes?)?\s*", re.IGNORECASE)
_MODULES = (
    "string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, "
    "operator, io, sys, json"
)
_STARS = f"{_MODULES}, builtins, typing".split(", ")
_LIVE_CODE_BENCH = "\n".join(f"from {name} import *" for name in _STARS)
_LIVE_CODE_BENCH += f"\nimport {_MODULES}\nsys.setrecursionlimit(50000)"
_APPS = """\
import sys, time, itertools, collections, math, fractions, random, heapq
from itertools import accumulate, product, permutations, combinations
from collections import Counter, OrderedDict, deque, defaultdict, ChainMap
from functools import lru_cache
from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2
from typing import List, Tuple
from heapq import *
stdin, stdout = sys.stdin, sys.stdout"""


def load_live_code_bench(row: Row) -> Task:
    """Convert a row of LiveCodeBench (code_generation), with its public and private cases, to a task.

    `Program` grades it, or `HostCompare` if the cases call a function; the task then has `entry_point`. It has the
    data set's own comparison, and the imports that its grader puts before a submission. Private cases may be
    compressed (a pickled JSON text, then zlib, then base64); they are decoded without running pickled code. Raises
    ConfigurationError for cases that cannot be decoded.
    """
    row = _read(row, "load_live_code_bench")
    cases = [
        case
        for name in ("public_test_cases", "private_test_cases")
        if row.get(name)
        for case in _listed(row[name], name)
    ]
    pairs = [(case["input"], case["output"]) for case in cases]
    kinds = {case.get("testtype") or "stdin" for case in cases}
    if kinds == {"functional"}:
        metadata = _object(row.get("metadata"), "metadata")
        name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
        lines = [[_object(x, "input") for x in _text(a).strip().split("\n")] for a, _ in pairs]
        calls = [(args, _object(b, "output")) for args, (_, b) in zip(lines, pairs, strict=True)]
        return _calls(name, calls, 1, _LIVE_CODE_BENCH)
    if kinds - {"stdin"}:
        raise ConfigurationError(
            f"the row's cases are {', '.join(sorted(map(str, kinds)))}: give all 'stdin' or all 'functional'"
        )
    return {**_task(pairs, "live_code_bench"), "preamble": _LIVE_CODE_BENCH}


def _calls(name: Any, calls: Sequence[tuple[list[Any], Any]], tuples: int, preamble: str) -> Task:
    """Return a task of `HostCompare` for calls of a function, or of a method of LeetCode's class Solution."""
    if not calls or not isinstance(name, str) or not name.isidentifier():
        raise ConfigurationError(
            f"the row has no cases, or no name of their function in its func_name or fn_name: {name!r}"
        )
    return {
        "entry_point": name,
        "cases": [{"args": args, "expected": expected} for args, expected in calls],
        "strict": False,
        "tuples": tuples,
        "preamble": preamble,
    }


# Any, in what follows: a value of a row.
def _listed(value: Any, name: str) -> list[Mapping[str, Any]]:
    """Return a column's cases, which may be text: JSON, perhaps compressed, of all or of each."""
    try:
        if isinstance(value, str):
            value = parsed(value if value.lstrip()[:1] == "[" else _unpacked(value))
        if isinstance(value, list | tuple):
            value = list(map(parsed, value))
    except (ValueError, zlib.error) as error:
        raise ConfigurationError(f"the row's {name} cannot be read: {error}") from error
    if not isinstance(value, list) or not all(
        isinstance(each, Mapping) and {"input", "output"} <= each.keys() for each in value
    ):
        raise ConfigurationError(f"the row's {name} is no list of objects with input and output")
    return value


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
    Without a checker, output is compared as in CodeContests: word by word, regardless of case, with numbers within
    1e-5. Raises ConfigurationError for a row without cases.
    """
    row = _read(row, "load_code_contests")
    pairs: list[tuple[Any, Any]] = []
    for name in _COLUMNS["load_code_contests"]:
        value = _object(row.get(name), name)
        if isinstance(value, Mapping):
            pairs += _zipped(value.get("input"), value.get("output"), name)
        elif value:
            pairs += [(each["input"], each["output"]) for each in _listed(value, name)]
    task = _task(pairs, "code_contests")
    if row.get("checker"):
        task["checker"] = JudgeProgram(row["checker"])
    limit = row.get("time_limit")
    if isinstance(limit, Mapping):
        seconds, nanos = (limit.get(name) or 0 for name in ("seconds", "nanos"))
        task["time_limit"] = seconds + nanos / 1e9 or None
    elif limit:
        task["time_limit"] = limit
    if row.get("memory_limit_bytes"):
        task["memory_limit_mb"] = max(int(row["memory_limit_bytes"]) >> 20, 1)
    task["cases"] = with_files(task["cases"], row.get("input_file"), row.get("output_file"))
    return {name: value for name, value in task.items() if value is not None}


def with_files(
    cases: Sequence[Mapping[str, str]], input_file: str | None, output_file: str | None
) -> list[Task]:
    """Return cases whose program reads `input_file` and writes `output_file`; None or "": stdin, stdout."""
    found = [Task(case) for case in cases]
    for case in found:
        if input_file:
            case["files"] = {input_file: case["stdin"]}
        if output_file:
            case["outputs"] = {output_file: case.pop("stdout")}
    return found


def load_taco(row: Row) -> Task:
    """Convert a row of TACO or APPS, whose `input_output` is JSON with inputs and outputs, to a task.

    `Program` grades it, or `HostCompare` if the row has `fn_name`; the task then has `entry_point`. It has the
    comparison of APPS, and the imports that its grader puts before a submission. Raises ConfigurationError for cases
    and limits that cannot be read. The limits of TACO are for programs, so calls have those of `HostCompare`.
    """
    row = _read(row, "load_taco")
    both = _object(row["input_output"], "input_output")
    if not isinstance(both, Mapping):
        raise ConfigurationError("the row's input_output is no object with inputs and outputs")
    pairs = _zipped(both.get("inputs"), both.get("outputs"), "input_output")
    if both.get("fn_name"):
        if not all(isinstance(args, list | tuple) for args, _ in pairs):
            raise ConfigurationError(
                "the row has fn_name, and inputs that are no lists of arguments"
            )
        calls = [(_int_keys(args), _int_keys(result)) for args, result in pairs]
        task = _calls(both["fn_name"], calls, 2, _APPS)
        for case in task["cases"]:
            # The data set has most results in a list of their own, and its grader accepts them with and without it.
            if isinstance(case["expected"], list):
                case["also"] = case["expected"][:1]
        return task
    return {**_task(pairs, "apps"), "preamble": _APPS, **_limits(row)}


load_apps = load_taco


def _int_keys(value: Any) -> Any:
    """Return a value of JSON, with objects whose keys are whole numbers as dicts that have these as keys."""
    if isinstance(value, list | tuple):
        return [each if isinstance(each, list) else _int_keys(each) for each in value]
    try:
        pairs = [[int(key), each] for key, each in value.items()]
    except (AttributeError, ValueError):
        return value
    return {"__dict__": pairs}


def _limits(row: Mapping[str, Any]) -> Task:
    """Return the keys for limits such as "2.0 seconds" and "256 megabytes". Raises ConfigurationError for others."""
    limits: Task = {}
    for name, key in (("time_limit", "time_limit"), ("memory_limit", "memory_limit_mb")):
        if not row.get(name):
            continue
        if not (found := _LIMIT.fullmatch(str(row[name]))):
            raise ConfigurationError(
                f"the row's {name}={row[name]!r} cannot be read: give a number, in seconds or megabytes, or None"
            )
        limits[key] = float(found[1]) if key == name else max(int(float(found[1])), 1)
    return limits


def load_codeforces(row: Row) -> Task:
    """Convert a row of open-r1/codeforces to a task.

    The official tests, and `generated_tests` if they are a list, become the cases; a row without has its examples.
    The data set's checker is run as it is. Without one, output is compared word by word. Raises ConfigurationError
    for an interactive problem, and for a row that lacks tests which are in other files of the data set.
    """
    row = _read(row, "load_codeforces")
    if row.get("interaction_format") or row.get("executable") is False:
        raise ConfigurationError(
            "the row has an interaction_format or executable=False, so no tests: make an interactive task yourself, "
            "with a JudgeProgram as its interactor"
        )
    tests = _cases_of(row, "official_tests")
    generated = row.get("generated_tests")
    if isinstance(generated, list):
        tests += _cases_of(row, "generated_tests")
    elif generated and row.get("official_tests_complete") is False:
        raise ConfigurationError(
            f"the row's official tests are not complete, and its {generated} generated_tests are in other files of "
            "the data set: give them as a list of objects with input and output, or None to do without"
        )
    task = {**_task(tests or _cases_of(row, "examples"), "tokens"), **_limits(row)}
    if source := row.get("generated_checker"):
        task["checker"] = JudgeProgram(source, language="python", protocol="printed")
    if (mode := row.get("input_mode") or "stdio") not in ("stdio", "file"):
        raise ConfigurationError(
            f"the row's input_mode={mode!r} is unknown: give 'stdio' or 'file'"
        )
    if mode == "file":
        task["cases"] = with_files(task["cases"], "input.txt", "output.txt")
    return task


def _cases_of(row: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
    value = row.get(name)
    return [(each["input"], each["output"]) for each in _listed(value, name)] if value else []


def _zipped(inputs: Any, outputs: Any, name: str) -> list[tuple[Any, Any]]:
    """Return pairs of two columns; None is an empty one."""
    inputs, outputs = ([] if each is None else each for each in (inputs, outputs))
    both = isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple)
    if both and len(inputs) == len(outputs):
        return list(zip(inputs, outputs, strict=True))
    raise ConfigurationError(f"the row's {name} has no lists of inputs and outputs of equal length")


def _object(value: Any, name: str) -> Any:
    """Return a column's value, which may be text in JSON."""
    try:
        return parsed(value)
    except ValueError as error:
        raise ConfigurationError(f"the row's {name} cannot be read: {error}") from error


def _text(value: Any) -> str:
    """Return a case's text; join the list of lines that some rows have instead."""
    if value is None:
        raise ConfigurationError("a case of the row has None in the place of its input or output")
    if isinstance(value, list | tuple):
        return "\n".join(map(_text, value))
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _task(pairs: Sequence[tuple[Any, Any]], checker: str) -> Task:
    if not pairs:
        raise ConfigurationError("the row has no cases")
    return {
        "cases": [{"stdin": _text(a), "stdout": _text(b)} for a, b in pairs],
        "checker": checker,
    }


def _read(row: Row, loader: str) -> dict[str, Any]:
    """Return a row as plain Python. Raises ConfigurationError if it has none of the columns of `loader`."""
    found = plain_row(row)
    if any(found.get(name) for name in _COLUMNS[loader]):
        return found
    own = ", ".join(_COLUMNS[loader])
    names = [name for name, value in found.items() if value]
    for reader, columns in _COLUMNS.items():
        for name in columns:
            if name in names:
                raise ConfigurationError(
                    f"the row has no cases in {own}: its {name} is for {reader}"
                )
    raise ConfigurationError(
        f"the row has no cases in {own}; it has {', '.join(names) or 'nothing'}"
    )
