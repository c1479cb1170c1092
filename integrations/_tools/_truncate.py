"""Observations: valid Unicode text, shortened in the middle."""

from sandboxkit import ConfigurationError, ProcessResult

_MARK = "\n[... {} characters left out ...]\n"


def truncate_middle(text: str, limit: int) -> str:
    """Return `text`; if it is too long, its beginning and end around a note of what is missing.

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
    """Return a command's standard error, with a note if output beyond `limit` bytes was dropped."""
    if not result.truncated:
        return result.stderr
    return f"{result.stderr}\n[of more than {limit} bytes the middle was dropped]"


def _valid(text: str) -> str:
    return text.encode(errors="replace").decode()
