"""Compares the golden rows with the graders that the data sets have published, in wheels given as arguments.

It stands for modules that these graders import and do not need here, and is no test: the packages are large.
"""

import contextlib
import io
import json
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA

GOLDEN = read(DATA / "golden.toml")
STUBS = (
    *("datasets", "evalscope.utils.io_utils", "evalscope.utils.logger", "opencompass.datasets"),
    *("opencompass.datasets.base", "opencompass.openicl.icl_evaluator", "opencompass.registry"),
    *("opencompass.utils.code_execution", "verl.utils.reward_score.prime_code"),
)


class RuntimeModule:
    """pyext's class, which does not install any more."""

    @staticmethod
    def from_string(name: str, _: str, source: str) -> types.ModuleType:
        module = types.ModuleType(name)
        exec(source, module.__dict__)
        return module


def grader(wheels: list[str], package: str, path: str) -> dict[str, Any]:  # Any: its names
    """Load a grader's module from the wheel of its package."""
    (wheel,) = (each for each in wheels if Path(each).name.startswith(f"{package}-"))
    source = zipfile.ZipFile(wheel).read(path).decode()
    names: dict[str, Any] = {
        "__name__": path,
        "__package__": path.rpartition("/")[0].replace("/", "."),
    }
    exec(compile(source, path, "exec"), names)
    names["reliability_guard"] = lambda *_, **__: None  # it would disable this process
    return names


def decisions(wheels: list[str], name: str) -> Iterator[bool]:
    """Yield whether the published grader accepts each row of a table."""
    table, calls = GOLDEN[name], name.endswith("_calls")
    run = grader(wheels, table["package"], table["module"])["run_test"]
    for output, expected, _ in table["rows"]:
        if calls:
            both = {"fn_name": "f", "inputs": ["0"], "outputs": [expected]}
            code = f"def f(x):\n    return {output}\n"
        else:
            both = {"inputs": [""], "outputs": [expected]}
            code = f"import sys\nsys.stdout.write({output!r})\n"
        given = both if "verl" in table["package"] else {"input_output": json.dumps(both)}
        with contextlib.redirect_stdout(io.StringIO()):
            found = run(given, test=code, debug=False)
        results = found[0] if isinstance(found, tuple) else found
        yield len(results) == 1 and bool(results[0] is True or results[0] == 1)


def main(wheels: list[str]) -> int:
    """Print the rows on which a grader decides otherwise; return whether there are any."""
    sys.modules.update({name: MagicMock() for name in STUBS})
    sys.modules["pyext"] = types.SimpleNamespace(RuntimeModule=RuntimeModule)  # type: ignore[assignment]
    wrong = 0
    for name, table in GOLDEN.items():
        if "package" not in table:
            continue
        for row, accepted in zip(table["rows"], decisions(wheels, name), strict=True):
            if accepted != bool(row[2]):
                wrong += 1
                print(f"{name}: the published grader decides otherwise on {row}")  # noqa: T201
        print(f"{name}: {len(table['rows'])} rows")  # noqa: T201
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
