"""Observations: text that every tokenizer takes, cut in the middle, where least is lost."""

from sandboxkit import ConfigurationError

_MARK = "\n[... {} characters left out ...]\n"


def truncate_middle(text: str, limit: int) -> str:
    """Return `text`, or its beginning and end around a note of what is missing.

    The result is at most `limit` characters long, unless the note alone is longer. What is no
    Unicode, such as half of a surrogate pair, is "?" in it.
    """
    if limit <= 0:
        raise ConfigurationError(f"limit={limit!r} is not a positive number of characters")
    if len(text) <= limit:
        return _valid(text)
    kept = max(0, limit - len(_MARK.format(len(text))))
    head, tail = kept - kept // 2, kept // 2
    mark = _MARK.format(len(text) - kept)
    return _valid(text[:head]) + mark + _valid(text[len(text) - tail :])


def _valid(text: str) -> str:
    return text.encode(errors="replace").decode()
