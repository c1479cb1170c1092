"""Reads rows of data sets in SWE-bench's format. The package swebench says how they are tested, and what a log means."""

import asyncio
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.images import RegistryImage
from sandboxkit.integrations._extras import needs
from sandboxkit.integrations._rows import parsed, plain_row
from sandboxkit.integrations.swe._cache import cached
from sandboxkit.integrations.swe._task import Task
from sandboxkit.integrations.swe.folder import INTERNET, OWN, public_network
from sandboxkit.json_lines import read_json_lines
from sandboxkit.types import Network

SWE_BENCH = "the package swebench"
"""The parser of such a task; Terminal-Bench's format "swebench" is another."""
PACKAGE = "swebench"
SUFFIXES = (".jsonl", ".json", ".parquet")
_FORMAT = "1"
_TEST_SECONDS = 1800.0  # swebench's own
_PATCH = "/tmp/sandboxkit-model.patch"
_ELSEWHERE = {
    "image_assets": "a row of SWE-bench Multimodal, whose tests need images that rows only link to",
    "expected_output_json": "a row of R2E-Gym, which the package r2egym grades",
    "fixed_tests": "a row of Multi-SWE-bench, which the package multi-swe-bench grades",
    "fix_patch": "a row of Multi-SWE-bench, which the package multi-swe-bench grades",
}
"""Columns that other data sets have, and why such a row is refused."""

# Somebody else may own the repository. As a variable, it does not need a home folder.
_GIT = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
_SETUP = f"{_GIT}; git update-ref refs/sandboxkit/base HEAD"
# An index of its own ignores locks and marks of the agent's. The image's commit may differ from the row's.
_COLLECT = f"""{_GIT}
rm -rf {_PATCH}
base=$(git rev-parse -q --verify refs/sandboxkit/base || echo "$0")
export GIT_INDEX_FILE=$(mktemp -d)/index
git read-tree "$base" && git add -A && git diff --cached --binary --no-color --no-ext-diff --no-textconv \\
  --src-prefix=a/ --dst-prefix=b/ --output={_PATCH} "$base"
"""
# The commands of swebench in its order. Their output would come before the tests', with names that the patch chose.
_APPLY = """#!/bin/bash
{git}
cd {workdir} || exit 1
apply() {{
  for command in {commands}; do
    $command "$1" >/dev/null 2>&1 && return
    git checkout -q -- . ; git clean -qfd
  done
  git apply --check --reverse "$1"
}}
"""
_TEST = """
if [ -s {patch} ]; then apply {patch} || {{ echo "the patch cannot be applied"; exit 1; }}; fi
for path in {touched}; do git checkout -q HEAD -- "$path" 2>/dev/null || rm -rf -- "$path"; done
exec /bin/bash /tests/eval.sh
"""


# Any, throughout: rows of data sets, and what swebench says of them.
def read_rows(
    rows: Iterable[Any],
    *,
    image: str | None,
    allow_network: str | Collection[str],
    refused: MutableMapping[str, ConfigurationError] | None,
) -> dict[str, Task]:
    """Return the tasks of rows in SWE-bench's format as {instance_id: task}; see `load_tasks`."""
    found = dict[str, dict[str, Any]]()
    network = INTERNET if public_network(allow_network) == INTERNET else None

    def refuse(name: str, why: object) -> None:
        error = ConfigurationError(f"task {name!r}: {why}")
        if refused is None:
            raise error
        refused[name] = error

    for number, given in enumerate(rows, 1):
        name = f"row {number}"
        try:
            row = plain_row(given)
            name = _name(row, name)
            if name in found:
                raise ValueError("another row has the same instance_id")
            found[name] = _instance(row)
        except (ConfigurationError, TypeError, ValueError) as error:
            refuse(name, error)
    if not found:
        return {}
    tasks, folder = dict[str, Task](), _prepared(list(found.values()))
    for number, name in enumerate(found):
        try:
            tasks[name] = _task(name, folder / str(number), image, network)
        except (ConfigurationError, ValueError) as error:
            refuse(name, error)
    return tasks


def _task(name: str, folder: Path, image: str | None, network: Network | None) -> Task:
    spec = json.loads((folder / "spec.json").read_text())
    if "error" in spec:
        raise ValueError(spec["error"])
    row = spec["row"]
    named = RegistryImage(row["image"], f"the row of {name!r}") if image is None else image
    return Task(
        id=name,
        instruction=row["problem_statement"],
        tests=folder / "tests",
        image=None if named == OWN else named,
        setup=_SETUP,
        collect=("bash", "-c", _COLLECT, str(row.get("base_commit", "HEAD"))),
        workdir=spec["workdir"],
        artefacts=(_PATCH,),
        parser=SWE_BENCH,
        reward_decides=True,
        test_timeout=_TEST_SECONDS,
        network=network,
        test_network=network,
        solution=folder / "solution",
        metadata={key: row[key] for key in ("repo", "base_commit", "version") if key in row},
    )


def rows_of(path: Path) -> Iterator[Any]:
    """Yield the rows of a file of JSON lines, JSON or Parquet. Raises ConfigurationError if it is not one."""
    if path.suffix == ".jsonl":
        yield from (row for _, row in read_json_lines(path, "the rows"))
        return
    try:
        if path.suffix == ".parquet":
            with needs("swebench"):
                from pyarrow import parquet
            yield from parquet.read_table(path).to_pylist()
        else:
            rows = json.loads(path.read_bytes())
            if not isinstance(rows, list):
                raise ValueError("it is no list of rows")
            yield from rows
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the rows {str(path)!r} cannot be read: {error}") from error


def row_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a data set that hold the rows of a split, named as on Hugging Face."""
    return sorted(
        path
        for path in folder.rglob(f"{split}*")
        if path.suffix in SUFFIXES and path.name.removesuffix(path.suffix).split("-")[0] == split
    )


async def resolved(task: Task, log: str) -> tuple[bool | None, str]:
    """Return whether swebench finds the task resolved by a log of its tests, and which tests it finds wrong.

    None: it finds no results at all, also if it takes too long or fails on this log. Raises ProviderUnavailableError
    if this machine cannot run it.
    """
    row = json.loads((task.tests.parent / "spec.json").read_text())["row"]
    try:
        report = await asyncio.to_thread(_ask, "report", {"row": row, "log": log})
    except subprocess.CalledProcessError as error:
        # A kill, and memory that ran out, are this machine's; the limit of CPU time and a traceback the log's.
        is_machines = error.returncode < 0 and error.returncode != -signal.SIGXCPU
        if is_machines or "MemoryError" in error.stderr[-300:]:
            raise ProviderUnavailableError(
                f"swebench ended with status {error.returncode}"
            ) from error
        return None, f"swebench cannot read the log: {error.stderr[-300:]}"
    if not report["patch_successfully_applied"]:
        return None, report.get("infra_failure_reason", "")
    failed = [
        f"{name} {test}"
        for name, tests in report["tests_status"].items()
        for test in tests["failure"]
    ]
    return report["resolved"], "; ".join(failed)[:300]


def _name(row: Mapping[str, Any], otherwise: str) -> str:
    name = row.get("instance_id")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 200:
        raise ValueError(f"{otherwise} has no instance_id of at most 200 printable characters")
    return name


def _instance(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with swebench's own names and types. Raises ValueError for one that it does not grade."""
    row = {name: value for name, value in row.items() if value is not None and value != ""}
    json.dumps(row, ensure_ascii=False, default=str).encode()  # raises for half a surrogate pair
    for column, what in _ELSEWHERE.items():
        if row.get(column) not in (None, {}, [], "{}", "[]"):
            raise ValueError(f"{what}; it is not supported here")
    if str(row.get("repo", "")).startswith("swesmith/") and "eval_script" not in row:
        raise ValueError(
            "a row of SWE-smith, which the package swesmith grades; it is not supported here"
        )
    if not {"eval_script", "install_config"} & set(row):
        raise ValueError(
            "there is neither eval_script nor install_config, which say how to test it: the newest revisions of "
            "SWE-bench's data sets have eval_script, log_parser and eval_type"
        )
    for name in ("install_config", "FAIL_TO_PASS", "PASS_TO_PASS"):
        if name in row:
            row[name] = parsed(row[name])
    config = row.get("install_config") or {}
    row.setdefault("log_parser", config.get("log_parser"))
    image = row.get("image") or row.get("docker_image") or row.get("image_name")
    for name in ("repo", "patch", "test_patch", "problem_statement", "log_parser"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{name}={row.get(name)!r} is not text")
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        if not isinstance(row.get(name), list) or not all(isinstance(e, str) for e in row[name]):
            raise ValueError(f"{name} is not a list of the names of tests, or such a list as JSON")
    if not row["FAIL_TO_PASS"]:
        raise ValueError("FAIL_TO_PASS is empty: no work would be rewarded")
    return row | ({"image": image} if image else {})


def _prepared(rows: Sequence[Mapping[str, Any]]) -> Path:
    """Return a folder of the cache with the tests and the solution of each row, by its number."""
    with needs("swebench"):
        version = metadata.version(PACKAGE)
    text = json.dumps([_FORMAT, version, rows], default=str)

    def fill(folder: Path) -> None:
        for number, spec in enumerate(_ask("specs", rows)):
            _write(folder / str(number), spec)

    return cached(f"swebench-{hashlib.sha256(text.encode()).hexdigest()[:32]}", fill)


def _write(folder: Path, spec: Mapping[str, Any]) -> None:
    files = {"spec.json": json.dumps(spec)}
    if "error" not in spec:
        row, workdir = spec["row"], shlex.quote(spec["workdir"])
        commands = " ".join(map(shlex.quote, spec["apply"]))
        apply = _APPLY.format(git=_GIT, workdir=workdir, commands=commands)
        names = re.findall("^diff --git a/(.+) b/(.+)$", row["test_patch"], re.MULTILINE)
        touched = shlex.join(sorted({name for pair in names for name in pair}))
        files |= {
            "tests/test.sh": apply + _TEST.format(patch=_PATCH, touched=touched),
            "tests/eval.sh": spec["script"],
            "solution/solve.sh": f"{apply}apply /solution/gold.patch && echo applied\n",
            "solution/gold.patch": row["patch"],
        }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def _ask(what: str, given: object) -> Any:
    """Return the answer of the program beside this module. Raises CalledProcessError if it fails."""
    program = Path(__file__).with_name("_swebench_program.py")
    with tempfile.TemporaryDirectory() as folder:
        asked = subprocess.run(
            [sys.executable, "-P", str(program), what],
            input=json.dumps(given, default=str),
            env={**os.environ, "PYTHONUTF8": "1"},
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    return json.loads(asked.stdout)
