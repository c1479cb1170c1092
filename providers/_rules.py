"""Rules that the options of a sandbox must satisfy: what each provider honours, as data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sandboxkit.errors import ConfigurationError
from sandboxkit.types import SandboxSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """A value of an option that a provider refuses."""

    field: str
    """The option."""
    why: str
    """The reason and the remedy."""
    breaks: Callable[[SandboxSpec], bool]
    """Whether a spec breaks the rule."""
    shown: Callable[[SandboxSpec], str] | None = None
    """Returns what the error message shows of the value; None: all of it."""


def check(spec: SandboxSpec, rules: Iterable[Rule], *, provider: str) -> None:
    """Raise ConfigurationError for the first rule that the spec breaks."""
    for rule in rules:
        if rule.breaks(spec):
            value = getattr(spec, rule.field) if rule.shown is None else rule.shown(spec)
            raise ConfigurationError(
                f"provider {provider!r} cannot honour {rule.field}={value!r}: {rule.why}"
            )


def is_root(user: str | None) -> bool:
    """Return whether "name", "uid" or "name-or-uid:group" is root; False for None."""
    name = (user or "").partition(":")[0]
    return name == "root" or (bool(name) and not name.strip("0"))


def never(reasons: Mapping[str, str]) -> tuple[Rule, ...]:
    """Refuse every value but None and {} of these options; `reasons` maps each to the reason."""
    return tuple(
        Rule(field, why, _is_given(field), _names_of(field) if field == "mounts" else None)
        for field, why in reasons.items()
    )


def at_least(field: str, least: float, why: str = "") -> Rule:
    """Refuse values of an option below `least`."""
    remedy = f"give {least} or more" + (f": {why}" if why else "")
    return Rule(field, remedy, lambda spec: _number(spec, field, least) < least)


def at_most(field: str, most: float, why: str = "") -> Rule:
    """Refuse values of an option above `most`."""
    remedy = f"give {most} or less" + (f": {why}" if why else "")
    return Rule(field, remedy, lambda spec: _number(spec, field, most) > most)


STRICT = (
    Rule(
        "user",
        "profile='strict' runs nothing as root",
        lambda spec: spec.profile == "strict" and is_root(spec.user),
    ),
    Rule(
        "workdir",
        "with profile='strict' this directory is read-only",
        lambda spec: spec.profile == "strict" and spec.workdir == "/",
    ),
)
"""Options that conflict with a strict profile."""


def _number(spec: SandboxSpec, field: str, default: float) -> float:
    value: float | None = getattr(spec, field)
    return default if value is None else value


def _is_given(field: str) -> Callable[[SandboxSpec], bool]:
    return lambda spec: getattr(spec, field) not in (None, {})


def _names_of(field: str) -> Callable[[SandboxSpec], str]:
    return lambda spec: ", ".join(getattr(spec, field))


def _surrogates(field: str) -> Callable[[SandboxSpec], list[str]]:
    def found(spec: SandboxSpec) -> list[str]:
        items: Mapping[str, str] = getattr(spec, field)
        return [
            name
            for name, value in items.items()
            if any("\ud800" <= character <= "\udfff" for character in name + value)
        ]

    return found


def _unicode(field: str) -> Rule:
    # The message names the key only: the value may be secret.
    found = _surrogates(field)
    return Rule(
        field,
        "it is not Unicode text",
        lambda spec: bool(found(spec)),
        lambda spec: found(spec)[0],
    )


UNICODE = tuple(map(_unicode, ("env", "secrets", "tags")))
"""Texts that JSON over HTTP cannot carry: they hold surrogates, for bytes that are not UTF-8."""
