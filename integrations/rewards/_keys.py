"""Checks the keys of a task and of its cases before anything is graded, by one pydantic model a kind of task."""

import difflib
import functools
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, InstanceOf, ValidationError, model_validator
from pydantic_core import ErrorDetails

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import plain_row, with_lists

_TYPO, _SIMILAR = 0.8, 0.6
"""Similarity of names, from 0 to 1: an unknown key is a typo of a known key; is worth naming as a remedy."""
_SHOWN = 80

Text = InstanceOf[str]
"""Text that may hold half a surrogate, which `surrogateescape` makes of a byte that is no UTF-8."""

# Any, throughout: a task is a row of a user's data set.
Row = Mapping[str, Any]


class Keys(BaseModel):
    """The keys of a task, or of one of its cases. Values are not converted; None means not given."""

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)

    grader: ClassVar[str]
    """The grader that reads the keys."""
    words: ClassVar[Mapping[str, str]]
    """Other graders' and data sets' names for these keys, and what to write instead."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of such names that ask for nothing."""
    needs: ClassVar[Mapping[str, Collection[str]]] = {}
    """Keys that have no effect without one of the keys listed."""
    unrelated: ClassVar[frozenset[str]] = frozenset()
    """Columns of data sets that resemble keys."""

    @model_validator(mode="before")
    @classmethod
    def _without_none(cls, row: Any) -> Any:
        if isinstance(row, Mapping):
            return {name: value for name, value in row.items() if value is not None}
        return row

    @model_validator(mode="after")
    def _have_an_effect(self) -> Self:
        for name, needs in self.needs.items():
            value, default = getattr(self, name), type(self).model_fields[name].default
            alone = self.model_fields_set.isdisjoint(needs)
            if alone and _is_set(value) and value != default:
                raise ValueError(
                    f"has {name}={shown(value)} and no {' or '.join(needs)}, without which it has no effect"
                )
        return self


def checked(model: type[Keys], task: Row, ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return a row as plain Python, without columns that are None, NaN or in `ignore`.

    Data sets fill columns that a row does not use with None. Lists may be JSON. Raises ConfigurationError for keys
    that do not validate, and for another column that looks like a misspelt key or another grader's setting.
    """
    if not isinstance(task, Mapping):
        raise ConfigurationError(_no_object(model, "the task", task))
    row = with_lists(plain_row(task)).items()
    given = {name: each for name, each in row if name not in ignore and each is not None}
    for name, value in given.items():
        asks = _is_set(value) and value != model.defaults.get(name)
        remedy = _suspicion(model, name) if asks else ""
        if remedy:
            raise ConfigurationError(
                f"the task has a key {name!r} ({shown(value)}), which {model.grader} does not read: {remedy} (if "
                f"grading does not need this column of the data set: {model.grader}(ignore=({name!r},)))"
            )
    try:
        model.model_validate({name: given[name] for name in model.model_fields if name in given})
    except ValidationError as error:
        raise ConfigurationError(_text(model, error.errors(include_url=False)[0])) from None
    return given


@functools.lru_cache(maxsize=1024)
def _suspicion(model: type[Keys], name: str) -> str:
    """Return a remedy for an unknown key that seems meant for the grader, or "" for any other column."""
    known = model.model_fields
    if name in known or name in model.unrelated:
        return ""
    if name.lower() not in model.words and _closest(name, known, _TYPO) is None:
        return ""
    return _instead(model, name)


def _instead(model: type[Keys], name: str) -> str:
    if name.lower() in model.words:
        return f"write {model.words[name.lower()]}"
    close = _closest(name, model.model_fields, _SIMILAR)
    return f"did you mean {close!r}?" if close else f"there are {', '.join(model.model_fields)}"


def _text(model: type[Keys], error: ErrorDetails) -> str:
    """Return what is wrong with a task, and what to write."""
    first, *rest = error["loc"] or ("",)
    where, whose, name = "the task", "the task's", str(first)
    if first == "cases" and rest:
        case = model.model_fields["cases"].annotation
        model = get_args(case)[0]
        where, name = f"case {int(rest[0]) + 1}", str(rest[1]) if rest[1:] else ""
        whose = f"{where}'s"
    if error["type"] == "value_error":
        return f"{where} {error.get('ctx', {}).get('error')}"
    value = shown(error["input"])
    if error["type"] == "extra_forbidden":
        return f"{where} has a key {name!r}, which {model.grader} does not read: {_instead(model, name)}"
    kind = type(error["input"]).__name__
    if not name:
        return _no_object(model, where, error["input"])
    remedy = error["msg"].replace("Assertion failed, ", "").replace("Input should be", "give")
    remedy = _REMEDIES.get(error["type"], remedy.replace("give greater", "give a number greater"))
    return f"{whose} {name}={value} is a {kind}: {remedy} ({model.model_fields[name].description})"


def _no_object(model: type[Keys], where: str, given: Any) -> str:
    keys = ", ".join(list(model.model_fields)[:3])
    return f"{where} is {shown(given)}, a {type(given).__name__}: give an object with keys such as {keys}"


_REMEDIES = {
    "bool_type": "give true or false",
    "is_instance_of": "give text",
    "sequence_str": "give a list",
    "string_type": "give text",
}
"""The remedy for a value of the wrong type, by the type of pydantic's error."""


def _closest(name: str, known: Collection[str], similarity: float) -> str | None:
    letters = {_letters(each): each for each in known}
    found = difflib.get_close_matches(_letters(name), letters, 1, similarity)
    return letters[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _is_set(value: Any) -> bool:
    return not (isinstance(value, str | list | tuple | dict) and not value)


def shown(value: Any) -> str:
    """Return a value of a task as text for an error, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
