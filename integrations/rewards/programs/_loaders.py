"""Converts rows of public data sets to tasks of `Program`; nothing is downloaded."""

import base64
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import parsed, plain_row
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Row = Mapping[str, Any]  # Any: a row of a data set
Task = dict[str, Any]  # Any: the keys of `Program`'s tasks
_MOST_BYTES = 1 << 30
"""Largest size of a row's cases, decompressed. LiveCodeBench has rows of a few hundred million bytes."""
_COLUMNS = {
    "load_live_code_bench": ("public_test_cases", "private_test_cases"),
    "load_code_contests": ("public_tests", "private_tests", "generated_tests", "test_cases"),
    "load_taco": ("input_output",),
    "Program, without a loader": ("cases",),
    "HostCompare, without a loader": ("test_list", "tests", "test"),
}
"""Columns with cases, by what reads them."""
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
    row = _read(row, "load_live_code_bench")
    cases = [
        case
        for name in ("public_test_cases", "private_test_cases")
        if row.get(name)
        for case in _listed(row[name], name)
    ]
    for case in cases:
        if (kind := case.get("testtype") or "stdin") != "stdin":
            raise _for_host_compare(f"testtype={kind!r}")
    return _task([(case["input"], case["output"]) for case in cases])


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
    Without a checker, output is compared word by word. Raises ConfigurationError for a row without cases.
    """
    row = _read(row, "load_code_contests")
    pairs: list[tuple[Any, Any]] = []
    for name in _COLUMNS["load_code_contests"]:
        value = _object(row.get(name), name)
        if isinstance(value, Mapping):
            pairs += _zipped(value.get("input"), value.get("output"), name)
        elif value:
            pairs += [(each["input"], each["output"]) for each in _listed(value, name)]
    task = _task(pairs, checker="tokens")
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

    Raises ConfigurationError for cases that cannot be read, and for a row with `fn_name`, because
    `HostCompare` grades those.
    """
    row = _read(row, "load_taco")
    both = _object(row["input_output"], "input_output")
    if not isinstance(both, Mapping):
        raise ConfigurationError("the row's input_output is no object with inputs and outputs")
    if both.get("fn_name"):
        raise _for_host_compare(f"fn_name={both['fn_name']!r}")
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


def _task(pairs: Sequence[tuple[Any, Any]], checker: str = "lines") -> Task:
    if not pairs:
        raise ConfigurationError("the row has no cases")
    return {
        "cases": [{"stdin": _text(a), "stdout": _text(b)} for a, b in pairs],
        "checker": checker,
    }


def _for_host_compare(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the row's {what} is for HostCompare: Program grades stdin; write "
        "{'entry_point': 'f', 'cases': [{'args': [1], 'expected': 2}]}"
    )


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
