"""Checks of a task's keys and of its cases, before anything is graded."""

import ast
import difflib
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import plain
from sandboxkit.integrations.rewards._parse import parse
from sandboxkit.integrations.rewards._task_keys import (
    CASE_KEYS,
    CASE_WORDS,
    HOST_COMPARE,
    KNOWN_COLUMNS,
    OTHER_WORDS,
    TASK_KEYS,
    Key,
    Kind,
    Reads,
)
from sandboxkit.integrations.rewards._values import Comparison

_ALIKE = 0.8
"""Minimum similarity, from 0 to 1, at which an unknown key counts as a typo of a known key."""
_SHOWN = 80

# Any, throughout: a task is a row of a user's data set.
Task = Mapping[str, Any]


def checked(task: Task, reads: Reads = HOST_COMPARE, *, ignore: Collection[str] = ()) -> Task:
    """Return the task without columns that are None, those in `ignore` and lines that test nothing.

    Data sets fill columns that a row does not use with None, and a `test_list` with blank lines and comments,
    which everything passes. Arrays of NumPy become lists. `reads` names the grader for error
    texts, and the keys that it would ignore. Other columns pass unchecked. Raises ConfigurationError
    for an invalid task, and for a column that looks like a misspelt key or another grader's setting.
    """
    if isinstance(task, PreparedTask):
        return task
    given = {name: plain(value) for name, value in task.items() if name not in ignore}
    known = {key.name: key for key in TASK_KEYS}
    for name, value in given.items():
        if name not in known and _is_set(value):
            _refuse_alike(name, value)
    own = {name: value for name, value in given.items() if value is not None or name not in known}
    for name, key in known.items():
        if name in own:
            _check(key, own[name], "the task's")
            _check_company(key, own, "the task", reads)
    for number, case in enumerate(own.get("cases", ()), 1):
        check_case(case, f"case {number}")
    if lines := own.get("test_list"):
        own["test_list"] = [line for line in lines if _tests_something(line)]
        if not own["test_list"]:
            raise ConfigurationError(
                f"the task's test_list={shown(lines)} tests nothing: give lines such as 'assert f(1) == 2'"
            )
    return own


class PreparedTask(dict[str, Any]):
    """A task that its grader has checked and taken apart already, once for many submissions."""

    parts: Any = ()  # what the grader made of its tests


def _tests_something(line: str) -> bool:
    """Return whether source is more than comments, constants and `pass`; what does not parse is."""
    try:
        body = parse(line.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return not all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def no_function(entry: object) -> ConfigurationError:
    """Return the error for an `entry_point` that is no function's name, as LeetCode's `Solution().f`."""
    call = f"{entry}(...)" if isinstance(entry, str) and entry else "f(...)"
    return ConfigurationError(
        f"the task's entry_point={entry!r} is not a function's name: give one, or a test_list with lines such "
        f"as 'assert {call} == ...'"
    )


def check_case(case: Any, where: str = "a case") -> None:
    """Check one case. Raises ConfigurationError for an invalid one."""
    if not isinstance(case, Mapping):
        raise ConfigurationError(
            f"{where} is {shown(case)}, a {type(case).__name__}: give an object with args and "
            "expected, or with stdin and stdout"
        )
    known = {key.name: key for key in CASE_KEYS}
    filled = [name for name, value in case.items() if value is not None or name == "expected"]
    if "stdin" in filled and case.get("expected") is None:
        filled = [name for name in filled if name != "expected"]
    for name in filled:
        if name not in known:
            raise ConfigurationError(
                f"{where} has a key {name!r}, which no grader reads: "
                f"{instead(name, CASE_WORDS, known)}"
            )
        _check(known[name], case[name], f"{where}'s")
    if "expected" in filled and "stdout" in filled:
        raise ConfigurationError(f"{where} has both expected and stdout: make two cases of it")
    for name in filled:
        if known[name].needs and not {*filled}.intersection(known[name].needs):
            raise ConfigurationError(
                f"{where} has {name}={shown(case[name])} and no {known[name].needs[0]}: "
                "give args and expected, or stdin and stdout"
            )
    if "expected" not in filled and "stdout" not in filled:
        raise ConfigurationError(
            f"{where}, {shown(case)}, has neither stdin and stdout nor args and expected"
        )


def comparison_of(task: Task, case: Task | None = None) -> Comparison:
    """Return a case's comparison. A missing `strict`, `rel_tol` or `abs_tol` is taken from the task."""
    options = {"strict": True, "rel_tol": 0.0, "abs_tol": 0.0}
    for name in options:
        for source in (task, case or {}):
            if source.get(name) is not None:
                options[name] = source[name]
    return Comparison(bool(options["strict"]), float(options["rel_tol"]), float(options["abs_tol"]))


def _check(key: Key, value: Any, whose: str) -> None:
    good, remedy = _CHECKS[key.kind]
    if not good(value):
        raise ConfigurationError(
            f"{whose} {key.name}={shown(value)} is a {type(value).__name__}: give {remedy} "
            f"({key.meaning})"
        )


def _check_company(key: Key, task: Task, where: str, reads: Reads) -> None:
    if not _is_set(task[key.name]) or task[key.name] == key.default:
        return
    if key.name in reads.unread:
        raise ConfigurationError(
            f"{where} has {key.name}={shown(task[key.name])}, which {reads.grader} does not read: "
            "use HostCompare"
        )
    if key.needs and not any(name in task for name in key.needs):
        raise ConfigurationError(
            f"{where} has {key.name}={shown(task[key.name])} and no {' or '.join(key.needs)}, "
            "without which it has no effect"
        )


def _refuse_alike(name: str, value: Any) -> None:
    if remedy := _suspicion(name):
        raise ConfigurationError(
            f"the task has a key {name!r} ({shown(value)}), which no grader reads: {remedy} (if "
            f"grading does not need this column of the data set: HostCompare(ignore=({name!r},)))"
        )


@functools.lru_cache(maxsize=1024)
def _suspicion(name: str) -> str:
    """Return a remedy for an unknown key that seems meant for the grader, or "" for any other column."""
    known = [key.name for key in TASK_KEYS]
    if name in KNOWN_COLUMNS or not seems_meant(name, OTHER_WORDS, known):
        return ""
    return instead(name, OTHER_WORDS, known)


def seems_meant(name: str, words: Mapping[str, str], known: Collection[str]) -> bool:
    """Whether an unknown key is another name of a `known` key, as `words` has them, or a typo of one."""
    return name.lower() in words or _closest(name, known, _ALIKE) is not None


def instead(name: str, words: Mapping[str, str], known: Collection[str]) -> str:
    """Return what to write instead of an unknown key: as `words` says, else the most similar `known` key."""
    if name.lower() in words:
        return f"write {words[name.lower()]}"
    close = _closest(name, known, 0.6)
    return f"did you mean {close!r}?" if close else f"there are {', '.join(known)}"


def _closest(name: str, known: Collection[str], similarity: float) -> str | None:
    plain = {_plain(each): each for each in known}
    found = difflib.get_close_matches(_plain(name), plain, 1, similarity)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _is_set(value: Any) -> bool:
    return value is not None and not (isinstance(value, (str, list, tuple, dict)) and not value)


def shown(value: Any) -> str:
    """Return a value of a task as text for an error, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_list(value: Any) -> bool:
    """Whether a value is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_texts(value: Any) -> bool:
    return is_list(value) and all(isinstance(each, str) for each in value)


def _is_names(value: Any) -> bool:
    return _is_texts(value) and all(each.isidentifier() for each in value)


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _is_python(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in ("py", "python", "python3")


_CHECKS: dict[Kind, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "text or messages": (
        lambda value: isinstance(value, str) or is_list(value),
        "text or messages",
    ),
    "list of text": (_is_texts, "a list of text"),
    "list of names": (_is_names, "a list of names, such as ['Vector']"),
    "names or yes": (
        lambda value: isinstance(value, bool) or _is_names(value),
        "true, or a list of names of functions",
    ),
    "list of cases": (is_list, "a list of objects with args and expected, or stdin and stdout"),
    "number": (_is_number, "a number from 0"),
    "yes or no": (lambda value: isinstance(value, bool), "true or false"),
    "isolated or shared": (
        lambda value: value in ("isolated", "shared"),
        "'isolated' or 'shared'",
    ),
    "python": (_is_python, "'python', the only language that graders here run"),
    "list": (is_list, "a list"),
    "mapping": (
        lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
        "an object whose keys are names",
    ),
    "value": (lambda _: True, "a value"),
}
