"""Converts problem packages on disk (Polygon's, and the ICPC format) to tasks of `Program`."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards.programs._checkers import TokensChecker
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Task = dict[str, Any]  # Any: the keys of `Program`'s tasks
_SOURCES = {".cpp": "cpp17", ".cc": "cpp17", ".c": "c", ".py": "python", ".java": "java"}


def load_polygon(folder: str | Path) -> Task:
    """Convert an unpacked Polygon package with its tests (the "full" package) to a task.

    Reads problem.xml for the limits, the tests of the first testset, the checker, and the interactor of
    an interactive problem. testlib.h is read from the package's folder `files`; if it is missing, put
    your own copy there. Raises ConfigurationError for a missing file and for a package without tests.
    """
    root = Path(folder)
    try:
        problem = ElementTree.fromstring(_read(root / "problem.xml"))
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"{root / 'problem.xml'} cannot be read: {error}") from error
    testset = problem.find("judging/testset")
    if testset is None:
        raise ConfigurationError(f"{root / 'problem.xml'} has no judging/testset")
    count = int(testset.findtext("test-count") or 0)
    stdin = testset.findtext("input-path-pattern") or "tests/%02d"
    stdout = testset.findtext("answer-path-pattern") or "tests/%02d.a"
    cases = [
        {
            "name": stdin % n,
            "stdin": _read(root / (stdin % n)),
            "stdout": _read(root / (stdout % n)),
        }
        for n in range(1, count + 1)
    ]
    if not cases:
        raise ConfigurationError(f"{root} has no tests: use the full package from Polygon")
    task: Task = {"cases": cases, "checker": "tokens"}
    if milliseconds := testset.findtext("time-limit"):
        task["time_limit"] = int(milliseconds) / 1000
    if size := testset.findtext("memory-limit"):
        task["memory_limit_mb"] = max(int(size) >> 20, 1)
    headers = {each.name: _read(each) for each in sorted((root / "files").glob("*.h"))}
    for name in ("checker", "interactor"):
        source = problem.find(f"assets/{name}/source")
        if source is not None:
            task[name] = _program(root / source.attrib["path"], headers)
    if "interactor" in task and task["checker"] == "tokens":
        del task["checker"]
    return task


def load_icpc(folder: str | Path) -> Task:
    """Convert a problem package in the ICPC (Kattis) format to a task.

    Reads data/sample and data/secret, the limits in problem.yaml or .timelimit, and the validator's
    flags (float_tolerance and the like). Raises ConfigurationError for a package without cases, and for
    one with its own output validator, because those do not use testlib's protocol.
    """
    root = Path(folder)
    if any((root / name).is_dir() for name in ("output_validators", "output_validator")):
        raise ConfigurationError(
            f"{root} has an output validator of its own, which Program cannot run: give the task a "
            "checker, as a function or JudgeProgram"
        )
    files = sorted([*root.glob("data/sample/*.in"), *root.glob("data/secret/**/*.in")])
    cases = [
        {
            "name": str(each.relative_to(root / "data").with_suffix("")),
            "stdin": _read(each),
            "stdout": _read(each.with_suffix(".ans")),
        }
        for each in files
    ]
    if not cases:
        raise ConfigurationError(f"{root} has no cases below data/sample or data/secret")
    settings = _read(root / "problem.yaml") if (root / "problem.yaml").exists() else ""
    task: Task = {"cases": cases, **_icpc_checker(_setting(settings, "validator_flags") or "")}
    limit = _setting(settings, "time_limit")
    if limit is None and (root / ".timelimit").exists():
        limit = _read(root / ".timelimit").strip()
    if limit is not None:
        task["time_limit"] = float(limit)
    if memory := _setting(settings, "memory"):
        task["memory_limit_mb"] = int(memory)
    return task


def _icpc_checker(flags: str) -> Task:
    words = flags.split()
    tolerances: Task = {}
    for name, key in (("relative", "rel_tol"), ("absolute", "abs_tol")):
        for flag in ("float_tolerance", f"float_{name}_tolerance"):
            if flag in words[:-1]:
                tolerances[key] = float(words[words.index(flag) + 1])
    if tolerances:
        return tolerances
    if "space_change_sensitive" in words:
        return {"checker": "exact"}
    return {"checker": TokensChecker(ignore_case="case_sensitive" not in words)}


def _setting(text: str, name: str) -> str | None:
    """Return a scalar from simple YAML text, at any indentation; None if it is missing or empty."""
    found = re.search(rf"^[ \t]*{name}:[ \t]*(.*?)[ \t]*(?:#.*)?$", text, re.MULTILINE)
    return found[1].strip("'\"") or None if found else None


def _program(path: Path, headers: dict[str, str]) -> JudgeProgram:
    language = _SOURCES.get(path.suffix)
    if language is None:
        raise ConfigurationError(
            f"{path} is not a source that Program can compile; use one of {', '.join(_SOURCES)}"
        )
    return JudgeProgram(_read(path), headers, language)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
