"""Whatever parses an untrusted text takes time in proportion to it: of 256 KB a fortieth of a second."""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxkit import ProcessResult
from sandboxkit.cli._text import TerminalSanitizer, safe_line, safe_text
from sandboxkit.integrations.rewards import Verdict, banned_patterns, extract_code
from sandboxkit.integrations.rewards._banned import MOST_CODE
from sandboxkit.integrations.rewards._evaluation import claimed
from sandboxkit.integrations.rewards._values import Comparison, ForgedJsonError
from tests.rewards.corpus import DATA, read

LARGE = 1 << 18
SECONDS = 1.0
"""What a parser may take of the processor for `LARGE`. What grows with the square of the length takes longer on any
machine: even to copy a text for each of its characters takes several seconds. CPython's own parser does that with a
dotted name, which takes a tenth of a second for the longest code that is looked at."""
ROUNDS = 3
"""In how many turns a parser may show what it takes where others use the machine as well."""


# Any: what a parser reads, a text or bytes.
@dataclass(frozen=True)
class Parser:
    """Something that reads what nobody vouches for, and what is worst for it, of a given size."""

    parse: Callable[[Any], object]
    worst: Mapping[str, Callable[[int], Any]]


def again(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def between(before: str, piece: str, after: str) -> Callable[[int], str]:
    return lambda size: before + again(piece)(size) + after


def falling(size: int) -> str:
    """Fences of which none closes another, each shorter than the one before, and then lines."""
    return "".join(f"{'`' * (502 - number)}\n" for number in range(500)) + again("x\n")(size)


def shifted(size: int) -> str:
    """Fences of many kinds, all of which may open and none of which closes."""
    kinds = [" " * (4 * (24 - row)) + "`" * (3 + 40 * row) for row in range(25)]
    return "".join(f"{kind}{'x' if row % 2 else ''}\n" for row in range(40) for kind in kinds)[
        :size
    ]


GIVEN = read(DATA / "linear.toml")


def given(kind: str, *more: str) -> dict[str, Callable[[int], str]]:
    pieces = [*GIVEN[kind]["pieces"], *more]
    repeated = {f"{piece!r} again and again": again(piece) for piece in pieces}
    return repeated | {name: between(*three) for name, three in GIVEN[kind]["between"].items()}


TEXTS: dict[str, Callable[[int], str]] = {
    **given("texts", "\ud800"),
    "fences that do not close one another": falling,
    "fences of many kinds": shifted,
    "fences after text": again("x```\na: ```python\n"),
    "tags of code": again("\n<code>"),
    "tags of thinking": again("<think></think>"),
    "every character": lambda size: "".join(map(chr, range(size // 4))),
}
CODES: dict[str, Callable[[int], str]] = {
    **TEXTS,
    **given("codes", "x" + ".a" * 90 + "\n", "x" + ".a" * 1400 + "\n"),
    "names of a long name": lambda size: (
        f"import {'a.' * (size // 4)}a as x\n" + "".join(f"x.a{n}\n" for n in range(size // 20))
    ),
    "names of a wide name": lambda size: (
        f"import {'a' * (size // 2)} as x\n" + "".join(f"x.a{n}\n" for n in range(size // 20))
    ),
    "different names": lambda size: "".join(f"x.a{n};" for n in range(size // 10)),
}
BANNED = ["sorted", ".sort", ".sort.key", "import", "os.system", *(f"name{n}.x" for n in range(9))]


def looked_at(make: Callable[[int], str]) -> Callable[[int], str]:
    """As much less as makes of `LARGE` the longest code that is looked at."""
    return lambda size: make(size * MOST_CODE // LARGE - 100)[:MOST_CODE]


# A parser is added with the texts that are worst for it; strings can have all of TEXTS.
def compared(pair: tuple[str, Any]) -> None:
    text, expected = pair
    result = ProcessResult(("x",), 0, f'["value",{text}]'.encode(), b"", False, 0.0)
    value = claimed(result, expected)
    for comparison in COMPARISONS if not isinstance(value, Verdict) else ():
        with suppress(ForgedJsonError):
            comparison.equal(value, expected)


def same(before: str, item: str, after: str, expected: str) -> Callable[[int], tuple[str, Any]]:
    """A claim of so many items, compared with one as large that ends in another way."""

    def make(size: int) -> tuple[str, Any]:
        items = f"{item}," * ((size - len(before) - len(after)) // (len(item) + 1))
        return f"{before}{items}{item}{after}", json.loads(f"{before}{items}{expected}{after}")

    return make


def numbered(kind: str) -> Callable[[int], tuple[str, Any]]:
    """A claim of as many different members, of which one is another than expected."""

    def make(size: int) -> tuple[str, Any]:
        members = list(range(size // 8))
        pairs = [[member, member] for member in members[: len(members) // 2]]
        claim: list[Any] = pairs if kind in ("dict", "ordered") else members
        last = claim[0][:1] * 2 if pairs is claim else -1
        return json.dumps([kind, claim]), [kind, [*claim[1:], last]]

    return make


COMPARISONS = (Comparison(), Comparison(strict=False), Comparison(strict=False, rel_tol=1e-6))
LISTS = same('["list",[', "[]", "]]", "1")
ANSWERS: dict[str, Callable[[int], tuple[str, Any]]] = {
    **{name: same(*parts) for name, parts in GIVEN["answers"].items()},
    "a set": numbered("set"),
    "a dict": numbered("dict"),
    "an ordered dict": numbered("ordered"),
    "lists where a number was expected": lambda size: (LISTS(size)[0], 1),
    "one deep member of a set": lambda size: (f'["set",[{LISTS(size)[0]}]]', ["set", [1]]),
    **{
        f"a {kind} of {digit}s": lambda size, kind=kind, digit=digit, rest=rest: (  # type: ignore[misc]
            json.dumps([kind, digit * size, *rest]),
            [kind, "1", *rest],
        )
        for kind, digit, *rest in GIVEN["digits"]
    },
    "a fraction of two long numbers": lambda size: (
        json.dumps(["fraction", "f" * (size // 2), "e" * (size // 2)]),
        ["fraction", "0x1", "0x2"],
    ),
    **{
        name: lambda size, parts=parts: (between(*parts)(size), 1)  # type: ignore[misc]
        for name, parts in GIVEN["no_number"].items()
    },
    "a text": lambda size: (json.dumps("x" * size), "x" * size + "y"),
    "escapes": lambda size: (f'"{again(chr(92) + "u0041")(size - size % 6)}"', "x"),
}


PARSERS: dict[str, Parser] = {
    "values": Parser(compared, ANSWERS),
    "extract_code": Parser(extract_code, TEXTS),
    "banned_patterns": Parser(
        lambda code: banned_patterns(code, BANNED),
        {name: looked_at(make) for name, make in CODES.items()},
    ),
    "safe_line": Parser(safe_line, TEXTS),
    "safe_text": Parser(safe_text, TEXTS),
    "TerminalSanitizer": Parser(
        lambda text: TerminalSanitizer().feed(text.encode(errors="replace"), final=True), TEXTS
    ),
}


def seconds(parser: Parser, given: object) -> float:
    """What one reading takes of the processor, in this thread alone and without the search for garbage, which a large
    text sets off and which takes time for all that the test process holds."""
    gc.disable()
    try:
        begun = time.thread_time()
        parser.parse(given)
        return time.thread_time() - begun
    finally:
        gc.enable()


def slow(parser: Parser, make: Callable[[int], Any]) -> str:
    """What a large text takes, where that is more than it may; else nothing."""
    large, shortest = make(LARGE), float("inf")
    for _ in range(ROUNDS):
        shortest = min(shortest, seconds(parser, large))
        if shortest <= SECONDS:
            return ""
    return f"{LARGE} characters take {shortest:.2f} s"


def slow_texts(parser: Parser) -> dict[str, str]:
    return {name: reply for name, make in parser.worst.items() if (reply := slow(parser, make))}


@pytest.mark.parametrize("name", PARSERS)
def test_hostile_texts_are_read_in_linear_time(name: str) -> None:
    assert slow_texts(PARSERS[name]) == {}


def test_a_parser_that_takes_too_long_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 0.01)
    squared = Parser(lambda text: sum(range((len(text) >> 7) ** 2)), {})
    assert slow(squared, again("x")).startswith(f"{LARGE} characters take ")
    assert slow(Parser(len, {}), again("x")) == ""


def test_a_text_of_too_many_fences_holds_no_code() -> None:
    block = "```python\nx\n```\n"
    assert extract_code(block * 500) == "x"
    assert extract_code(block * 501) is None


def test_code_over_the_length_limit_is_reported() -> None:
    assert banned_patterns("x".ljust(MOST_CODE), ["sorted"]) == []
    (finding,) = banned_patterns("x".ljust(MOST_CODE + 1), ["sorted"])
    assert (finding.pattern, finding.line) == ("length", 0)
    assert banned_patterns("x" * LARGE, []) == []
