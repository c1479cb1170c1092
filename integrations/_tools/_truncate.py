"""Shortens texts for a model, by leaving out the middle, and makes them valid Unicode."""

from sandboxkit import ConfigurationError, ProcessResult

_MARK = "\n[... {} characters left out ...]\n"


def truncate_middle(text: str, limit: int) -> str:
    """Return `text`. If it is too long, replace its middle by a note on how many characters are missing.

    The result has at most `limit` characters, unless the note alone is longer. Invalid Unicode,
    such as half of a surrogate pair, becomes "?". Raises ConfigurationError unless limit > 0.
    """
    if limit <= 0:
        raise ConfigurationError(f"limit={limit!r} is not a positive number of characters")
    if len(text) <= limit:
        return _valid(text)
    kept = max(0, limit - len(_MARK.format(len(text))))
    head, tail = kept - kept // 2, kept // 2
    mark = _MARK.format(len(text) - kept)
    return _valid(text[:head]) + mark + _valid(text[len(text) - tail :])


def stderr_of(result: ProcessResult, limit: int) -> str:
    """Return a command's standard error, with a note if more than `limit` bytes were written."""
    if not result.truncated:
        return result.stderr
    return f"{result.stderr}\n[the middle of more than {limit} bytes was dropped]"


def _valid(text: str) -> str:
    return text.encode(errors="replace").decode()
