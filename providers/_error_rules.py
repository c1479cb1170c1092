"""Turns a backend's failure into sandboxkit's error, by a table of rules."""

import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotFoundError
from sandboxkit.provider import no_sandbox


@dataclass(frozen=True, slots=True)
class Failure:
    """A backend's answer to a failed call, as rules read it."""

    text: str
    """The start of the error's message: the call, and the backend's message. "" leaves it to the rule."""
    message: str
    """The backend's message, which patterns search."""
    codes: AbstractSet[object]
    """The status, the exception's classes, and other facts that rules ask for.

    `apply_rules` adds "sandbox" if the call concerned one.
    """
    sandbox_id: str | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """A row of a table: the error for failures that have one of `codes` and all that is `needed`."""

    codes: Iterable[object]
    """Codes of which the failure must have one; () accepts every failure."""
    kind: type[SandboxError]
    remedy: str | Callable[[str], str] = ""
    """The end of the error's message, or a function that makes it from the backend's message."""
    pattern: str = ""
    """A regular expression that the backend's message must contain; case does not matter."""
    needed: AbstractSet[object] = frozenset()


def rules_for(
    codes: Iterable[object], *rows: tuple[type[SandboxError], str, str]
) -> tuple[ErrorRule, ...]:
    """Return the rules of a kind, a remedy and a pattern each, which apply to the same codes."""
    return tuple(ErrorRule(codes, *row) for row in rows)


def apply_rules(failure: Failure, rules: Iterable[ErrorRule]) -> SandboxError:
    """Return the error of the first rule that matches; the last rule has to match everything."""
    codes = failure.codes if failure.sandbox_id is None else failure.codes | {"sandbox"}
    rule = next(
        rule
        for rule in rules
        if (not rule.codes or any(code in codes for code in rule.codes))
        and rule.needed <= codes
        and re.search(rule.pattern, failure.message, re.IGNORECASE)
    )
    remedy = rule.remedy if isinstance(rule.remedy, str) else rule.remedy(failure.message)
    text = "; ".join(filter(None, (failure.text, remedy)))
    if rule.kind is SandboxNotFoundError and failure.sandbox_id is not None:
        return no_sandbox(failure.sandbox_id)
    if issubclass(rule.kind, ProviderUnavailableError):
        return rule.kind(text, retry_after=failure.retry_after, sandbox_id=failure.sandbox_id)
    return rule.kind(text, sandbox_id=failure.sandbox_id)
