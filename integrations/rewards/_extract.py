"""Extracts the code from a model's answer: looks for answer tags first, then for fenced blocks."""

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

_log = logging.getLogger(__name__)

PYTHON = ("python", "py", "python3", "py3", "ipython", "ipython3", "")
"""The languages of a fenced block that may be Python; "" is a block without one."""

_MOST_FENCES = 1000
"""Maximum number of fences. A text with more is not parsed, since pairing them would take too long."""

_TAGS = re.compile(r"<(/?)answer>", re.IGNORECASE)
# An opening tag within a line is prose, as are backticks there.
_CODE_TAGS = re.compile(
    r"(?:^[ \t]*+<(?!/)|<(?=/))(/?)code(?: [^<>\n]{0,99}+)?>", re.IGNORECASE | re.MULTILINE
)
_THOUGHT = re.compile(
    r"\s*+(?:<think(?:ing)?>|<thought>|\[THINK\]|<\|channel\|>analysis<\|message\|>)", re.IGNORECASE
)
_THOUGHT_TAGS = re.compile(
    r"<(/?)(?:think(?:ing)?|thought)>|\[(/?)THINK\]|<(\|)channel\|>final<\|message\|>",
    re.IGNORECASE,
)
# Not in a quotation. Possessive quantifiers prevent backtracking.
_FENCE = re.compile(r"^(?![ \t]*+>)(?:([^`\n]*+)(`{3,}+)|([ \t]*+)(~{3,}+))(.*+)", re.MULTILINE)
_WORD = re.compile(r"[\w+#{}.-]++")
_LISTED = re.compile(r"[ \t]*+(?:[-*+]|\d{1,9}[.)])[ \t]++")
_LANGUAGE = re.compile(r"[{.]*+(?:language-)?([\w+#-]*+)")
# What a model ends its turn with, if the sampler leaves it in the text; and closing tags around the block.
_END_TOKENS = re.compile(r"(?:\s|<[^<>\s]{1,40}+>|\[/?[A-Z]{2,9}\])++")
_WRAPPERS = ("markdown", "md")


class _Fence(NamedTuple):
    start: int
    end: int
    """End of the line, including its line break."""
    before: str
    """The text before the marks in their line."""
    marks: str
    info: str

    @property
    def alone(self) -> bool:
        """Whether the fence begins its line, or follows tags there."""
        return not self.before.strip() or bool(_END_TOKENS.fullmatch(self.before))

    @property
    def listed(self) -> bool:
        """Whether the fence begins an item of a list."""
        return bool(_LISTED.fullmatch(self.before))

    @property
    def indent(self) -> int:
        return len(self.before) if not self.before.strip() or self.listed else 0

    @property
    def at(self) -> int:
        """Where the marks begin."""
        return self.start + len(self.before)

    @property
    def opens(self) -> bool:
        if not (self.alone or self.listed):
            return self.before.rstrip().endswith(":") and bool(_WORD.fullmatch(self.info))
        return self.marks[0] == "~" or "`" not in self.info


class _CodeBlock(NamedTuple):
    start: int
    end: int
    info: str
    body: str


def extract_code(text: str, infos: Sequence[str] | None = PYTHON) -> str | None:
    """Return the code of the last answer in `text`, or None if there is none.

    `infos` are the lower-case languages of the blocks to accept, such as ("cpp", "c++", ""), and
    None accepts every block. The default accepts Python.

    Everything up to the last `</think>`, and from an unclosed `<think>`, is no answer. In the rest, the last
    complete `<answer>...</answer>` wins; if they are nested, the innermost. Tags inside
    a fenced block are part of its code. Within the answer, or in the whole text if there is no
    answer, the last fenced block counts. A block marked with one of `infos` takes precedence over an
    unmarked one; blocks of other languages are ignored. Without any block the last `<code>...</code>` counts
    whose opening tag begins a line. An unclosed block counts only if the
    answer's closing tag shows that the code is complete. Returns None for an empty answer, for text without fences
    and tags, for a block in a quotation (`> `), and for a text with more than 1,000 fences. The time is linear in
    the length of the text.
    """
    text = text.replace("\r\n", "\n")
    if len(_fences(text)) > _MOST_FENCES:
        return None
    if _THOUGHT_TAGS.search(text):
        text = _without_thoughts(text)
    blocks = list(_blocks(text, _fences(text)))
    answer = _last_tagged(_TAGS, text, blocks)
    if answer is not None:
        text, blocks = answer, list(_blocks(answer, _fences(answer)))
    if blocks:
        return _last_block(blocks, infos)
    if answer is None and (infos is None or "" in infos):
        answer = _last_tagged(_CODE_TAGS, text, blocks)
    return None if answer is None else _without_opener(answer, infos)


_warned = False
_MOST_CHECKED = 64 << 10
"""Maximum length of a failed submission that is searched for fences, on the event loop."""


def note_fences(verdict: Verdict, submission: object, extract: str = "extract_code") -> Verdict:
    """Return the verdict; if a submission failed that looks like a whole completion, its detail says so.

    A policy may have caused that, so it is no error. The first one in a process is logged as well.
    """
    global _warned
    if verdict.outcome in (Outcome.PASSED, Outcome.INFRA_ERROR):
        return verdict
    # A caller may pass the None of a completion without code.
    if not isinstance(submission, str) or len(submission) > _MOST_CHECKED:
        return verdict
    if extract_code(submission, None) is None:
        return verdict
    note = f"the submission has code in fences or tags: grade {extract}(completion), not the completion"
    if not _warned:
        _warned = True
        _log.warning("a grader failed a submission: %s", note)
    return dataclasses.replace(verdict, detail=f"{verdict.detail} ({note})")


def _without_thoughts(text: str) -> str:
    """Return what follows a reasoning model's thoughts."""
    if opener := _THOUGHT.match(text):  # its fences need not be closed
        closer = next(
            (each for each in _THOUGHT_TAGS.finditer(text, opener.end()) if any(each.groups())),
            None,
        )
        text = text[closer.end() :] if closer else ""
    blocks = list(_blocks(text, _fences(text)))
    begin, end = 0, len(text)
    for tag in _outside(_THOUGHT_TAGS, text, blocks):
        if any(tag.groups()):
            begin, end = tag.end(), len(text)
        else:
            end = min(end, tag.start())
    return text[begin:end]


def _outside(
    tags: re.Pattern[str], text: str, blocks: Sequence[_CodeBlock]
) -> Iterator[re.Match[str]]:
    """Yield the tags that are not in a block."""
    position = 0
    for tag in tags.finditer(text):
        while position < len(blocks) and blocks[position].end <= tag.start():
            position += 1
        if position == len(blocks) or blocks[position].start > tag.start():
            yield tag


def _last_tagged(tags: re.Pattern[str], text: str, blocks: Sequence[_CodeBlock]) -> str | None:
    opened: int | None = None
    answer: tuple[int, int] | None = None
    for tag in _outside(tags, text, blocks):
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
    opener = next(iter(_fences(code)), None)
    first = opener and opener.start == 0 and opener.alone
    if opener and first and (infos is None or _language(opener.info) in infos):
        code = code[opener.end :]
    return _clean(code)


def _clean(code: str) -> str | None:
    return code.strip("\n").rstrip() or None


def _fences(text: str) -> list[_Fence]:
    """Return the marks that may open or close a block, at most one more in number than `_MOST_FENCES`."""
    if "```" not in text and "~~~" not in text:
        return []
    return [
        _Fence(
            each.start(),
            each.end() + 1,
            each[1] or each[3] or "",
            each[2] or each[4],
            _info(each[5]),
        )
        for each in islice(_FENCE.finditer(text), _MOST_FENCES + 1)
    ]


def _info(rest: str) -> str:
    """Return what follows the marks of a fence, "" if that is the end of the model's turn."""
    return "" if _END_TOKENS.fullmatch(rest) else rest.strip(" \t")


def _language(info: str) -> str:
    """Return the language in a block's info string, as in `python title="x"`, `{.python}` and `python:a.py`."""
    found = _LANGUAGE.match(info.lower())
    return (found and found[1]) or info


def _blocks(text: str, fences: Sequence[_Fence]) -> Iterator[_CodeBlock]:
    """Yield the closed fenced blocks, by the rules of CommonMark but at any indentation.

    Beyond these, a block may open after text in a line and close at the end of its last line of code, and one that is
    marked as Markdown and begins with a block may contain blocks.
    """
    index, wrapped = 0, False
    while index < len(fences):
        opener = fences[index]
        info = _language(opener.info)
        if wrapped and not info and opener.alone:
            index, wrapped = index + 1, False  # closes the Markdown
            continue
        if info in _WRAPPERS and index + 1 < len(fences) and fences[index + 1].info:
            index, wrapped = index + 1, True
            continue
        close = _closer(fences, index) if opener.opens else None
        if close is None:
            index += 1
            continue
        last = fences[close]
        end = last.start - 1 if last.alone else last.at
        body = _dedented(text[opener.end : max(opener.end, end)], opener.indent)
        yield _CodeBlock(opener.at, last.at + len(last.marks), info, body)
        index = close + 1


def _closer(fences: Sequence[_Fence], opener: int) -> int | None:
    first, glued = fences[opener], None
    for index in range(opener + 1, len(fences)):
        fence = fences[index]
        begins = fence.alone and fence.opens and _WORD.match(fence.info)
        if begins and (glued is not None or not (first.alone or first.listed)):
            return glued
        if fence.info or not fence.marks.startswith(first.marks) or fence.listed:
            continue
        if fence.alone and fence.indent <= first.indent + 3:
            return index
        if not fence.alone and glued is None:
            glued = index
    return glued


def _dedented(body: str, indent: int) -> str:
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", body, flags=re.MULTILINE) if indent else body
