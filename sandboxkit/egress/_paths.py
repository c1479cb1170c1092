"""A check that no server can read a URL's path as a different path."""

import re

_DOUBTFUL = re.compile(r"%2f|%5c|%2e|%25|%00|\\|//|;|[^!-~]", re.IGNORECASE)


def is_plain(path: str) -> bool:
    """Return whether a path, without its query, has no parts that servers may decode or skip."""
    if _DOUBTFUL.search(path):
        return False
    return not any(part in (".", "..") for part in path.split("/"))
