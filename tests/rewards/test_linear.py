"""Whatever parses an untrusted text takes time in proportion to it: of 256 KB a fortieth of a second."""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxkit import ProcessResult
from sandboxkit.cli._text import TerminalSanitizer, safe_line, safe_text
from sandboxkit.integrations.rewards import Verdict, banned_patterns, extract_code
from sandboxkit.integrations.rewards._banned import MOST_CODE
from sandboxkit.integrations.rewards._evaluation import claimed, same_text
from sandboxkit.integrations.rewards._values import Comparison, ForgedJsonError

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
    """A piece again and again."""
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def between(before: str, piece: str, after: str) -> Callable[[int], str]:
    """A piece again and again between two others."""
    return lambda size: before + again(piece)(size) + after


def falling(size: int) -> str:
    """Fences of which none closes another, each shorter than the one before, and then lines."""
    fences = "".join(f"{'`' * (502 - number)}\n" for number in range(500))
    return fences + again("x\n")(size)


def shifted(size: int) -> str:
    """Fences of many kinds, all of which may open and none of which closes."""
    kinds = [" " * (4 * (24 - row)) + "`" * (3 + 40 * row) for row in range(25)]
    return "".join(f"{kind}{'x' if row % 2 else ''}\n" for row in range(40) for kind in kinds)[
        :size
    ]


TEXTS: dict[str, Callable[[int], str]] = {
    **{
        f"{piece!r} again and again": again(piece)
        for piece in (
            *("```\n", "```python\n", "```python\nx\n```\n", "~~~\n```\n", " ```\n", "```x\n"),
            *("`", "~", " ", "\t", "\n", " \n", "\r", "\r\n", "```\r", "\0", "\ud800", "\u2028"),
            *("<", "<answer", "<answer>", "</answer>", "<answer></answer>", "<answer>\n```\n"),
            *("<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_call>{"),
            *("(", "[", "{", "[]", '{"a":', '"', "\\", "'", "'''", "1", "x", "é", "\u202e", "\x1b"),
        )
    },
    "a fence and blanks": between("```", " ", ""),
    "a fence, blanks and a word": between("```", " ", "x\n```"),
    "a fence, a word, blanks and a word": between("```x", " ", "x\n```"),
    "a fence and carriage returns": between("```", "\r", "\n```"),
    "a fence behind blanks": between("", " ", "```\nx\n```"),
    "a fence with many words": between("```", " x", "\n```"),
    "a block of empty lines": between("```\n", "\n", "```"),
    "a block of one line": between("```\n", "x", "\n```"),
    "an indented block of short lines": between("    ```\n", "    \n", "    ```"),
    "an indented block of blank lines": between(" " * 5000 + "```\n", " " * 4999 + "\n", "```"),
    "closing tags in a block": between("```\n<answer>", "</answer> ", "x\n```"),
    "blanks in tags in a block": between("```\n<answer>", " ", "</answer>\n```"),
    "blanks around tags in a block": between("```\n", " ", "<answer>x</answer>\n```"),
    "blanks in tags": between("<answer>", " ", "</answer>"),
    "empty lines in tags": between("<answer>", "\n", "</answer>"),
    "a fence and blanks in tags": between("<answer>```", " ", "x</answer>"),
    "fences that do not close one another": falling,
    "fences of many kinds": shifted,
    "fences as many as are read": between("```x\n" * 1000, "x\n", ""),
    "every character": lambda size: "".join(map(chr, range(size // 4))),
}

CODES: dict[str, Callable[[int], str]] = {
    **TEXTS,
    **{
        f"{piece!r} again and again": again(piece)
        for piece in (
            *("x;", "x,", "x()\n", "x.sort\n", "eval;", "x:x;", "x<", "x=", "1+", "x**", "not "),
            *("-", "x if x else ", "lambda:", "@x\n", "f'{x}'", "''", "\ufdfa;", "del x\n"),
            *("getattr(x,'a')\n", "getattr(x, 'a'+'b')\n", "__import__('os')\n", "x:x\n"),
            *("x" + ".a" * 90 + "\n", "x" + ".a" * 1400 + "\n", "from os import *\n", "print x\n"),
        )
    },
    "a long name": between("x", ".a", ""),
    "a long module": between("import a", ".a", ""),
    "a string of many names": between("f'", "{x}", "'"),
    "calls of what is called": between("x", "()", ""),
    "a long string of names": between("getattr(x, '", "sort.", "')"),
    "a string in many parts": between("getattr(x, 'a'", "+'a'", ")"),
    "names of a long name": lambda size: (
        f"import {'a.' * (size // 4)}a as x\n" + "".join(f"x.a{n}\n" for n in range(size // 20))
    ),
    "names of a wide name": lambda size: (
        f"import {'a' * (size // 2)} as x\n" + "".join(f"x.a{n}\n" for n in range(size // 20))
    ),
    "different names": lambda size: "".join(f"x.a{n};" for n in range(size // 10)),
}

BANNED = ["sorted", ".sort", ".sort.key", "import", "os.system", *(f"name{n}.x" for n in range(9))]


def banned(code: str) -> object:
    """For a task with many patterns."""
    return banned_patterns(code, BANNED)


def looked_at(make: Callable[[int], str]) -> Callable[[int], str]:
    """As much less as makes of `LARGE` the longest code that is looked at."""
    return lambda size: make(size * MOST_CODE // LARGE - 100)[:MOST_CODE]


def neutralised(text: str) -> object:
    """As a command's output is shown."""
    return TerminalSanitizer().feed(text.encode(errors="replace"), final=True)


def arguments(text: str) -> object:
    """JSON, of any depth; the parsers of tool calls answer these errors."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return error


# A parser is added with the texts that are worst for it; strings can have all of TEXTS.
def compared(pair: tuple[str, Any]) -> None:
    """Read what a sandbox claims, and compare it with what was expected."""
    text, expected = pair
    result = ProcessResult(("x",), 0, f'["value",{text}]'.encode(), b"", False, 0.0)
    value = claimed(result, expected)
    for comparison in COMPARISONS if not isinstance(value, Verdict) else ():
        try:
            comparison.equal(value, expected)
        except ForgedJsonError:
            pass


def same(before: str, item: str, after: str, expected: str) -> Callable[[int], tuple[str, Any]]:
    """A claim of so many items, compared with one as large that ends in another way."""

    def make(size: int) -> tuple[str, Any]:
        count = (size - len(before) - len(after)) // (len(item) + 1)
        items = f"{item}," * count
        return f"{before}{items}{item}{after}", json.loads(f"{before}{items}{expected}{after}")

    return make


def numbered(kind: str) -> Callable[[int], tuple[str, Any]]:
    """A claim of as many different members, of which one is another than expected."""

    def make(size: int) -> tuple[str, Any]:
        members = list(range(size // 8))
        pairs = [[member, member] for member in members[: len(members) // 2]]
        claim: list[Any] = pairs if kind in ("dict", "ordered") else members
        return json.dumps([kind, claim]), [
            kind,
            [*claim[1:], claim[0][:1] * 2 if pairs is claim else -1],
        ]

    return make


COMPARISONS = (Comparison(), Comparison(strict=False), Comparison(strict=False, rel_tol=1e-6))
ANSWERS: dict[str, Callable[[int], tuple[str, Any]]] = {
    "a list of lists": same('["list",[', '["list",[]]', "]]", "null"),
    "a list of nothing": same('["list",[', "null", "]]", "1"),
    "a list of floats": same('["list",[', '["float","0x1.8p+0"]', "]]", '["float","0x1p+0"]'),
    "a list of decimals": same('["list",[', '["decimal","1.10"]', "]]", '["decimal","1.2"]'),
    "a list of objects": same('["list",[', '["object","x",[1]]', "]]", "2"),
    "a set of sets": same('["set",[', '["set",[]]', "]]", "1"),
    "a set": numbered("set"),
    "a dict": numbered("dict"),
    "an ordered dict": numbered("ordered"),
    "lists where a number was expected": lambda size: (
        same('["list",[', "[]", "]]", "1")(size)[0],
        1,
    ),
    "one deep member of a set": lambda size: (
        '["set",[' + same('["list",[', "[]", "]]", "1")(size)[0] + "]]",
        ["set", [1]],
    ),
    "members that are equal": same('["set",[', "1", "]]", "1"),
    **{
        f"a {kind} of {digit}s": lambda size, kind=kind, digit=digit, rest=rest: (  # type: ignore[misc]
            json.dumps([kind, digit * size, *rest]),
            [kind, "1", *rest],
        )
        for kind, digit, rest in (
            ("int", "f", ()),
            ("int", "x", ()),
            ("float", "9", ()),
            ("decimal", "9", ()),
            ("bytes", "a", ()),
            ("complex", "1", ("0x1p+0",)),
            ("fraction", "f", ("f" * 1000,)),
            ("datetime", "9", ("9",)),
        )
    },
    "a fraction of two long numbers": lambda size: (
        json.dumps(["fraction", "f" * (size // 2), "e" * (size // 2)]),
        ["fraction", "0x1", "0x2"],
    ),
    "a long number": lambda size: ("9" * size, 1),
    "a long exponent": lambda size: (f"1e{'9' * size}", 1),
    "a decimal's long exponent": lambda size: (json.dumps(["decimal", f"1e{'9' * size}"]), 1),
    "brackets": lambda size: ("[" * size, 1),
    "braces": lambda size: ('{"":' * (size // 4), 1),
    "a text": lambda size: (json.dumps("x" * size), "x" * size + "y"),
    "escapes": lambda size: (f'"{again(chr(92) + "u0041")(size - size % 6)}"', "x"),
}


def printed(pair: tuple[str, str]) -> None:
    for comparison in COMPARISONS:
        same_text(*pair, comparison)


OUTPUTS: dict[str, Callable[[int], tuple[str, str]]] = {
    "lines": lambda size: (again("1\n")(size), again("1\n")(size) + "2"),
    "blanks": lambda size: (" " * size, "x"),
    "blank lines": lambda size: ("\n" * size + "x", "x"),
    "one line": lambda size: ("9" * size, "8" * size),
    "words that are near": lambda size: (again("1.5 ")(size), again("1.500000001 ")(size)),
}


PARSERS: dict[str, Parser] = {
    "values": Parser(compared, ANSWERS),
    "outputs": Parser(printed, OUTPUTS),
    "extract_code": Parser(extract_code, TEXTS),
    "banned_patterns": Parser(banned, {name: looked_at(make) for name, make in CODES.items()}),
    "arguments": Parser(arguments, TEXTS),
    "safe_line": Parser(safe_line, TEXTS),
    "safe_text": Parser(safe_text, TEXTS),
    "TerminalSanitizer": Parser(neutralised, TEXTS),
}


def seconds(parser: Parser, given: object) -> float:
    """What one reading takes of the processor, in this thread alone: a large text takes long enough for
    other threads of the test process to come in between, and a small one does not.

    Without the search for garbage, which a large text sets off and a small one does not, and which
    takes time for all that the test process holds.
    """
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
    """Return what `slow` says of each text that it takes too long to read."""
    found = {worst: slow(parser, make) for worst, make in parser.worst.items()}
    return {worst: reply for worst, reply in found.items() if reply}


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
