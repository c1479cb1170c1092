"""Converts problem packages on disk (Polygon's, and the ICPC format) to tasks of `Program`."""

import dataclasses
import os
import re
import stat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sandboxkit import ConfigurationError
from sandboxkit.datasets import Folder
from sandboxkit.integrations.rewards._checkers import ExactChecker, FloatsChecker, TokensChecker
from sandboxkit.integrations.rewards.programs._loaders import with_files
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

Task = dict[str, Any]  # Any: the keys of `Program`'s tasks
_MOST_BYTES = 1 << 30
_TYPES = re.compile(r"^type:(.*(?:\n[ \t]*-.*)*)", re.MULTILINE)
_UNSUPPORTED = frozenset(("multi-pass", "scoring", "submit-answer", "score"))
"""Types of problems, and words of `validation`, that ask for what is not done here."""
_TOLERANCES = ("float_relative_tolerance", "float_absolute_tolerance", "float_tolerance")
_OWN_ARGUMENTS = re.compile(r"^[ \t]*(output_validator_(?:flags|args)|args|files):", re.MULTILINE)
"""A line by which a file beside the cases sets arguments for some of them."""
_SOURCES = {".cpp": "cpp17", ".cc": "cpp17", ".c": "c", ".py": "python", ".java": "java"}


def load_polygon(folder: str | Path) -> Task:
    """Convert an unpacked Polygon package with its tests (the "full" package) to a task.

    Reads problem.xml for the limits, the names of input and output files, the tests of the first testset, the
    checker, and the interactor of an interactive problem. testlib.h is read from the package's folder `files`; if it
    is missing, put your own copy there. Raises ConfigurationError for a missing file, for a package without tests, and
    for a problem that runs a submission twice.
    """
    files = _package(folder)
    try:
        problem = ElementTree.fromstring(_read(files, "problem.xml"))
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"{files.path / 'problem.xml'} cannot be read: {error}") from error
    judging, testset = problem.find("judging"), problem.find("judging/testset")
    if judging is None or testset is None:
        raise ConfigurationError(f"{files.path / 'problem.xml'} has no judging/testset")
    if (runs := judging.get("run-count", "1")) != "1":
        raise ConfigurationError(
            f"{files.path / 'problem.xml'} has run-count={runs!r}: Program runs a submission once a test"
        )
    count = _number(files, "test-count", testset.findtext("test-count") or "0")
    stdin, stdout = (
        _pattern(files, testset.findtext(f"{name}-path-pattern") or usual)
        for name, usual in (("input", "tests/%02d"), ("answer", "tests/%02d.a"))
    )
    cases = [
        {"name": stdin % n, "stdin": _read(files, stdin % n), "stdout": _read(files, stdout % n)}
        for n in range(1, int(count) + 1)
    ]
    if not cases:
        raise ConfigurationError(f"{files.path} has no tests: use the full package from Polygon")
    cases = with_files(cases, judging.get("input-file"), judging.get("output-file"))
    task: Task = {"cases": cases, "checker": "tokens"}
    if milliseconds := testset.findtext("time-limit"):
        task["time_limit"] = _number(files, "time-limit", milliseconds) / 1000
    if size := testset.findtext("memory-limit"):
        task["memory_limit_mb"] = max(int(_number(files, "memory-limit", size)) >> 20, 1)
    headers = {
        each.removeprefix("files/"): _read(files, each) for each in _names(files, r"files/[^/]*\.h")
    }
    for name in ("checker", "interactor"):
        if problem.find(f"assets/{name}") is not None:
            source = problem.find(f"assets/{name}/source")
            if source is None:
                raise ConfigurationError(
                    f"{files.path / 'problem.xml'} has a {name} without source"
                )
            task[name] = _program(files, source.get("path", ""), headers)
    if "interactor" in task and task["checker"] == "tokens":
        del task["checker"]
    return task


def load_icpc(folder: str | Path) -> Task:
    """Convert a problem package in the ICPC (Kattis) format to a task.

    Reads data/sample and data/secret, the limits in problem.yaml, .timelimit or domjudge-problem.ini, the
    validator's flags (float_tolerance and the like), and an output validator of the package's own, which becomes the
    checker, or the interactor of an interactive problem. Raises ConfigurationError for a package without cases, and
    for what `Program` does not do, such as scores, several passes, and arguments of single cases.
    """
    files = _package(folder)
    settings, ini = (_text(files, each) or "" for each in ("problem.yaml", "domjudge-problem.ini"))
    types, validation = _TYPES.search(settings), _setting(settings, "validation") or ""
    words = {*re.findall(r"[\w-]+", f"{types[1] if types else ''} {validation}")}
    if wrong := sorted(_UNSUPPORTED & words):
        raise ConfigurationError(
            f"{files.path} has the type {wrong[0]}, which Program does not run from an ICPC package: make the "
            "task yourself"
        )
    if special := re.search(r"^\s*(special_\w+)\s*=", ini, re.MULTILINE):
        raise ConfigurationError(
            f"{files.path / 'domjudge-problem.ini'} has {special[1]}, an output validator of its own that is "
            "not in the package: give the task a checker, as a function or JudgeProgram"
        )
    for name in _names(files, r"data/.*\.(?:yaml|args)|data/.*\.files/.*"):
        own = _OWN_ARGUMENTS.search(_read(files, name)) if name.endswith(".yaml") else name
        if own:
            raise ConfigurationError(
                f"{files.path / name} has arguments of single cases, which Program does not pass: make the task yourself"
            )
    cases = [
        {
            "name": name.removeprefix("data/").removesuffix(".in"),
            "stdin": _read(files, name),
            "stdout": _read(files, f"{name.removesuffix('.in')}.ans"),
        }
        for name in _names(files, r"data/(sample/[^/]*|secret/.*)\.in")
    ]
    if not cases:
        raise ConfigurationError(f"{files.path} has no cases below data/sample or data/secret")
    flags = (_setting(settings, "validator_flags") or "").split()
    validators = _names(files, r"output_validators?/.*") if validation != "default" else []
    task: Task = {"cases": cases}
    if validators or words & {"custom", "interactive"}:
        role = "interactor" if "interactive" in words else "checker"
        task[role] = _validator(files, validators, flags)
    else:
        task["checker"] = _default_validator(files, flags)
    limit = (
        _setting(settings, "time_limit")
        or _text(files, ".timelimit")
        or _setting(re.sub(r"[ \t]*=", ":", ini), "timelimit")
    )
    if limit is not None:
        task["time_limit"] = _number(files, "time_limit", limit)
    if memory := _setting(settings, "memory"):
        task["memory_limit_mb"] = int(_number(files, "memory", memory))
    return task


def _default_validator(
    files: Folder, flags: list[str]
) -> ExactChecker | FloatsChecker | TokensChecker:
    left, tolerances, others = iter(flags), dict[str, float](), set[str]()
    for flag in left:
        if flag in _TOLERANCES:
            tolerances[flag] = _number(files, flag, next(left, ""))
        else:
            others.add(flag)
    exact, ignore_case = "space_change_sensitive" in others, "case_sensitive" not in others
    if others - {"case_sensitive", "space_change_sensitive"} or (exact and tolerances):
        raise ConfigurationError(
            f"{files.path} has the validator_flags {' '.join(flags)!r}, by which Program does not compare: give the "
            "task a checker"
        )
    if tolerances:
        relative, absolute, both = (tolerances.get(name, 0.0) for name in _TOLERANCES)
        return FloatsChecker(relative or both, absolute or both, ignore_case)
    return ExactChecker(ignore_case) if exact else TokensChecker(ignore_case)


def _validator(files: Folder, names: list[str], flags: list[str]) -> JudgeProgram:
    """Return a package's own output validator. Raises ConfigurationError unless it is one source, perhaps with headers."""
    sources = [name for name in names if os.path.splitext(name)[1] in _SOURCES]
    folders = {os.path.dirname(name) for name in names}
    scripts = {"build", "run", "Makefile", "CMakeLists.txt"} & set(map(os.path.basename, names))
    if len(sources) != 1 or len(folders) != 1 or scripts:
        raise ConfigurationError(
            f"{files.path} needs an output validator of its own that is one source in {', '.join(_SOURCES)}, and "
            f"has {', '.join(names) or 'none'}: give the task a checker or interactor"
        )
    others = {os.path.basename(name): _read(files, name) for name in names if name not in sources}
    return dataclasses.replace(
        _program(files, sources[0], others), protocol="icpc", args=tuple(flags)
    )


def _setting(text: str, name: str) -> str | None:
    """Return a scalar from simple YAML text, at any indentation; None if it is missing or empty."""
    found = re.search(rf"^[ \t]*{name}:[ \t]*(.*?)[ \t]*(?:#.*)?$", text, re.MULTILINE)
    return found[1].strip("'\"") or None if found else None


def _program(files: Folder, name: str, headers: dict[str, str]) -> JudgeProgram:
    language = _SOURCES.get(os.path.splitext(name)[1])
    if language is None:
        raise ConfigurationError(
            f"{name!r} of {files.path} is not a source that Program can compile; use one of {', '.join(_SOURCES)}"
        )
    return JudgeProgram(_read(files, name), headers, language)


def _package(folder: str | Path) -> Folder:
    return Folder(folder, f"the problem package {os.fspath(folder)!r}")


def _names(files: Folder, pattern: str) -> list[str]:
    """Return the paths in the package that match a regular expression."""
    names = (os.fsdecode(entry.name) for entry in files.entries() if not stat.S_ISDIR(entry.mode))
    return sorted(name for name in names if re.fullmatch(pattern, name))


def _pattern(files: Folder, pattern: str) -> str:
    if not re.fullmatch(r"[^%]*%(0?\d)?d[^%]*", pattern):
        raise files.refusal(
            b"problem.xml", f"has the pattern {pattern!r}: use one such as 'tests/%02d'"
        )
    return pattern


def _number(files: Folder, name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,15}(\.\d{1,15})?(e-?\d{1,2})?", text.strip()):
        raise ConfigurationError(
            f"{files.path}: {name} is {text.strip()[:50]!r}, which is no number"
        )
    return float(text)


def _text(files: Folder, name: str) -> str | None:
    return files.text(name, most=_MOST_BYTES, errors="surrogateescape")


def _read(files: Folder, name: str) -> str:
    if (text := _text(files, name)) is None:
        raise ConfigurationError(f"{files.path / name} cannot be read: there is no such file")
    return text
