"""Find the names that trusted tests define, and the names that they expect from the submission."""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._parse import parse

_KNOWN = frozenset((*dir(builtins), "__name__", "__file__", "__annotations__"))


@dataclass(frozen=True, slots=True)
class _SourceNames:
    """The names in one piece of source."""

    bound: frozenset[str]
    read: frozenset[str]
    """Global names that the source reads."""
    words: frozenset[str]
    """Names, attributes and imported names."""
    called: frozenset[str]
    whole: frozenset[str]
    """Modules imported with `from module import *`."""


@lru_cache(maxsize=4096)  # all completions of a group have the same tests
def _source(source: str) -> _SourceNames:
    text = source.strip()
    bound, read, words = set[str](), set[str](), set[str]()
    called, whole = set[str](), set[str]()
    waiting = [symtable.symtable(text, "test", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            made = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if made and (top or symbol.is_declared_global()):
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (top or symbol.is_global()):
                read.add(symbol.get_name())
    for node in ast.walk(parse(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                words.add(name)
            case ast.Call(func=ast.Name(id=name)):
                called.add(name)
            case ast.Import(names=aliases):
                words.update(each.name for each in aliases)
            case ast.ImportFrom(names=aliases, module=module):
                words.update(each.name for each in aliases)
                if any(each.name == "*" for each in aliases):
                    whole.add(module or "")
            case _:
                pass
    found = (frozenset(each) for each in (bound, read, words, called, whole))
    return _SourceNames(*found)


def bound(source: str) -> frozenset[str]:
    """Return the names that the top level of trusted source defines, imports or assigns."""
    return _source(source).bound


def undefined(source: str, known: Iterable[str] = ()) -> set[str]:
    """Return the global names that `source` reads and that neither it nor `known` defines."""
    found = _source(source)
    return set(found.read - found.bound - _KNOWN - set(known))


def of_submission(
    task: Mapping[str, Any],  # Any: a row of a user's data set
    setup: str,
    sources: Sequence[str],
    *,
    lines: bool,
    module: str,
) -> tuple[str, ...]:
    """Return the names that the tests expect the submission to define.

    These are the task's `entry_point` and `names`; with `lines`, the undefined names that every
    source uses; and undefined names in the setup that look like classes. If the tests import all
    names of `module`, every undefined name counts. Raises ConfigurationError for any other
    undefined name.
    """
    listed = {str(name) for name in (task.get("entry_point") or "", *task.get("names", ())) if name}
    whole = "\n".join((setup, *sources))
    used = _source(whole)
    # A standard library module whose name the tests never call like a function is that module.
    found = undefined(whole) - (sys.stdlib_module_names - used.called)
    if module in used.whole:
        return tuple(sorted(found | listed))
    if lines:
        each = [undefined(source) for source in sources]
        listed |= set.intersection(*each)
    listed |= {name for name in undefined(setup) if name.lstrip("_")[:1].isupper()}
    unknown = sorted(found - listed)
    if unknown:
        raise ConfigurationError(
            f"the tests use {', '.join(map(repr, unknown))} and define no such name: if the "
            f"submission must define it, list it in the task: 'names': {unknown}"
        )
    return tuple(sorted(found | listed))


def classes_of(
    task: Mapping[str, Any],  # Any: see above
    sources: Iterable[str],
) -> tuple[str, ...]:
    """Return the names of the submission's classes whose objects stay live in the tests.

    These are the task's `operators` and its `classes`; without `classes`, the capitalised names in
    the tests.
    """
    named = {*map(str, task.get("operators", ()))}
    if "classes" in task:
        return tuple(sorted(named.union(map(str, task["classes"]))))
    words = {str(name) for name in (task.get("entry_point") or "", *task.get("names", ()))}
    words.update(*(_source(source).words for source in sources))
    capitalised = {each for each in words if each.lstrip("_")[:1].isupper()} - _KNOWN
    return tuple(sorted(named | capitalised))
