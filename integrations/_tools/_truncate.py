"""Observations cut in the middle, where least is lost."""

from sandboxkit import ConfigurationError

_MARK = "\n[... {} characters left out ...]\n"


def truncate_middle(text: str, limit: int) -> str:
    """Return `text`, or its beginning and end around a note of what is missing.

    The result is at most `limit` characters long, unless the note alone is longer.
    """
    if limit <= 0:
        raise ConfigurationError(f"limit={limit!r} is not a positive number of characters")
    if len(text) <= limit:
        return text
    kept = max(0, limit - len(_MARK.format(len(text))))
    head, tail = kept - kept // 2, kept // 2
    mark = _MARK.format(len(text) - kept)
    return text[:head] + mark + text[len(text) - tail :]
