"""The code in a model's answer: answer tags first, then fenced blocks."""

import re
from collections.abc import Iterator
from typing import NamedTuple

PYTHON = ("python", "py", "python3", "")
"""The info strings of a fenced block that may be Python; "" is a block without one."""

_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^\n]*?)[ \t]*\Z")


class _Block(NamedTuple):
    start: int
    end: int
    info: str
    body: str


def extract_code(text: str) -> str | None:
    """Return the code of the last answer in `text`, or None if there is none.

    The last complete `<answer>...</answer>` wins; of nested ones the innermost. Tags inside a
    fenced block are part of its code. Within the answer, and in a text without one, the last
    fenced block counts: one marked as Python before one that is not marked, never one of
    another language. A block that is not closed is cut off, so it counts only where the
    answer's closing tag shows that nothing is missing. An empty answer is None.
    """
    text = text.replace("\r\n", "\n")
    blocks = list(_blocks(text))
    answer = _last_answer(text, blocks)
    if answer is None:
        return _last_block(blocks)
    blocks = list(_blocks(answer))
    if blocks:
        return _last_block(blocks)
    return _without_opener(answer)


def _last_answer(text: str, blocks: list[_Block]) -> str | None:
    opened: int | None = None
    answer: str | None = None
    position = 0
    for tag in _TAGS.finditer(text):
        while position < len(blocks) and blocks[position].end <= tag.start():
            position += 1
        if position < len(blocks) and blocks[position].start <= tag.start():
            continue
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            answer, opened = text[opened : tag.start()], None
    return answer


def _last_block(blocks: list[_Block]) -> str | None:
    for infos in (PYTHON[:-1], PYTHON[-1:]):
        for block in reversed(blocks):
            if block.info in infos:
                return _unwrapped(block.body)
    return None


def _unwrapped(body: str) -> str | None:
    """A block's code, of which the whole may be in answer tags."""
    whole = re.fullmatch(r"\s*<answer>(.*)</answer>\s*", body, re.DOTALL | re.IGNORECASE)
    return _clean(whole[1] if whole else body)


def _without_opener(answer: str) -> str | None:
    lines = answer.strip("\n").split("\n")
    opener = _FENCE.match(lines[0])
    if opener and opener[3].lower() in PYTHON:
        lines = lines[1:]
    return _clean("\n".join(lines))


def _clean(code: str) -> str | None:
    return code.strip("\n").rstrip() or None


def _blocks(text: str) -> Iterator[_Block]:
    """The closed fenced blocks, by the rules of CommonMark, at any indentation."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    fences = [(number, match) for number, line in enumerate(lines) if (match := _FENCE.match(line))]
    index = 0
    while index < len(fences):
        number, opener = fences[index]
        if opener[2][0] == "`" and "`" in opener[3]:
            index += 1
            continue
        close = _closer(fences, index)
        if close is None:
            index += 1
            continue
        last = fences[close][0]
        indent = len(opener[1])
        body = "\n".join(_dedented(line, indent) for line in lines[number + 1 : last])
        info = opener[3].split(" ")[0].strip("{}.").lower()
        yield _Block(starts[number], starts[last + 1], info, body)
        index = close + 1


# How far to look for the fence that closes a block, in fences.
_REACH = 1000


def _closer(fences: list[tuple[int, re.Match[str]]], opener: int) -> int | None:
    marks, indent = fences[opener][1][2], len(fences[opener][1][1])
    for index in range(opener + 1, min(len(fences), opener + _REACH)):
        match = fences[index][1]
        if match[3] == "" and match[2].startswith(marks) and len(match[1]) <= indent + 3:
            return index
    return None


def _dedented(line: str, indent: int) -> str:
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, blank) :]
