"""Extracts the code from a model's answer: looks for answer tags first, then for fenced blocks."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

PYTHON = ("python", "py", "python3", "")
"""The info strings of a fenced block that may be Python; "" is a block without one."""

_MOST_FENCES = 1000
"""Maximum number of fences. A text with more is not parsed, since pairing them would take too long."""

_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)
# Possessive quantifiers prevent backtracking.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)(.*+)", re.MULTILINE)
# What a model ends its turn with, if the sampler leaves it in the text.
_END_TOKENS = re.compile(r"(?:\s|<[|\uff5c][^<>\s]{1,40}+>|</s>|<eos>|<end_of_turn>)++")


class _Fence(NamedTuple):
    start: int
    end: int
    """End of the line, including its line break."""
    indent: int
    marks: str
    info: str


class _CodeBlock(NamedTuple):
    start: int
    end: int
    info: str
    body: str


def extract_code(text: str, infos: Sequence[str] | None = PYTHON) -> str | None:
    """Return the code of the last answer in `text`, or None if there is none.

    `infos` are the lower-case info strings of the blocks to accept, such as ("cpp", "c++", ""), and
    None accepts every block. The default accepts Python.

    The last complete `<answer>...</answer>` wins; if they are nested, the innermost. Tags inside
    a fenced block are part of its code. Within the answer, or in the whole text if there is no
    answer, the last fenced block counts. A block marked with one of `infos` takes precedence over an
    unmarked one; blocks of other languages are ignored. An unclosed block counts only if the
    answer's closing tag shows that the code is complete. Returns None for an empty answer and for
    a text with more than 1,000 fences. The time is linear in the length of the text.
    """
    text = text.replace("\r\n", "\n")
    fences = _fences(text)
    if len(fences) > _MOST_FENCES:
        return None
    blocks = list(_blocks(text, fences))
    answer = _last_answer(text, blocks)
    if answer is None:
        return _last_block(blocks, infos)
    blocks = list(_blocks(answer, _fences(answer)))
    if blocks:
        return _last_block(blocks, infos)
    return _without_opener(answer, infos)


def _last_answer(text: str, blocks: Sequence[_CodeBlock]) -> str | None:
    opened: int | None = None
    answer: tuple[int, int] | None = None
    position = 0
    for tag in _TAGS.finditer(text):
        while position < len(blocks) and blocks[position].end <= tag.start():
            position += 1
        if position < len(blocks) and blocks[position].start <= tag.start():
            continue
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            answer, opened = (opened, tag.start()), None
    return None if answer is None else text[slice(*answer)]


def _last_block(blocks: Sequence[_CodeBlock], infos: Sequence[str] | None) -> str | None:
    if infos is None:
        return _unwrapped(blocks[-1].body) if blocks else None
    for marked in (True, False):
        for block in reversed(blocks):
            if block.info in infos and bool(block.info) is marked:
                return _unwrapped(block.body)
    return None


def _unwrapped(body: str) -> str | None:
    """Return a block's code, without the answer tags if they enclose all of it."""
    whole = body.strip()
    opener, closer = _TAGS.match(whole), _TAGS.fullmatch(whole, max(0, len(whole) - _CLOSER))
    if opener and closer and not opener[1] and closer[1] and opener.end() <= closer.start():
        return _clean(whole[opener.end() : closer.start()])
    return _clean(body)


_CLOSER = len("</answer>")


def _without_opener(answer: str, infos: Sequence[str] | None) -> str | None:
    code = answer.strip("\n")
    opener = _FENCE.match(code)
    if opener and (infos is None or opener[3].strip(" \t").lower() in infos):
        code = code[opener.end() + 1 :]
    return _clean(code)


def _clean(code: str) -> str | None:
    return code.strip("\n").rstrip() or None


def _fences(text: str) -> list[_Fence]:
    """Return the lines that may open or close a block, at most one more than `_MOST_FENCES`."""
    return [
        _Fence(each.start(), each.end() + 1, len(each[1]), each[2], _info(each[3]))
        for each in islice(_FENCE.finditer(text), _MOST_FENCES + 1)
    ]


def _info(rest: str) -> str:
    """Return what follows the marks of a fence, "" if that is the end of the model's turn."""
    return "" if _END_TOKENS.fullmatch(rest) else rest.strip(" \t")


def _blocks(text: str, fences: Sequence[_Fence]) -> Iterator[_CodeBlock]:
    """Yield the closed fenced blocks, by the rules of CommonMark but at any indentation."""
    index = 0
    while index < len(fences):
        opener = fences[index]
        close = None
        if opener.marks[0] == "~" or "`" not in opener.info:
            close = _closer(fences, index)
        if close is None:
            index += 1
            continue
        last = fences[close]
        body = _dedented(text[opener.end : max(opener.end, last.start - 1)], opener.indent)
        info = opener.info.partition(" ")[0].strip("{}.").lower()
        yield _CodeBlock(opener.start, last.end, info, body)
        index = close + 1


def _closer(fences: Sequence[_Fence], opener: int) -> int | None:
    marks, indent = fences[opener].marks, fences[opener].indent + 3
    for index in range(opener + 1, len(fences)):
        fence = fences[index]
        if not fence.info and fence.indent <= indent and fence.marks.startswith(marks):
            return index
    return None


def _dedented(body: str, indent: int) -> str:
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", body, flags=re.MULTILINE) if indent else body
