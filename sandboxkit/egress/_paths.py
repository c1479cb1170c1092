"""A check that no server reads a request's path or method as another one."""

import re
import unicodedata
from urllib.parse import unquote_to_bytes

from sandboxkit.egress._http import RequestHead, plain_name

_DOUBTFUL = re.compile(r"%(?![0-9a-f]{2})|%2f|%5c|%2e|%25|%00|\\|//|;|[^!-~]", re.IGNORECASE)
_MARKS = "./\\?#%;&"
"""Characters with a meaning in a path; other letters that are read as one of them are doubtful."""
_OVERRIDES = frozenset(
    {
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-method",
        "x-forwarded-method",
        "x-original-url",
        "x-original-uri",
        "x-rewrite-url",
        "x-override-url",
        "x-forwarded-uri",
        "x-forwarded-path",
        "x-forwarded-prefix",
        "x-envoy-original-path",
        "x-replaced-path",
        "x-script-name",
    }
)
"""Headers that some servers obey in the place of the request's own method or path."""
_FIELDS = frozenset({"_method", *_OVERRIDES})


def is_plain(path: str) -> bool:
    """Return whether a path, without its query, has no parts that servers may decode or skip."""
    if _DOUBTFUL.search(path):
        return False
    try:
        text = unquote_to_bytes(path).decode()  # strict: no overlong form
    except UnicodeDecodeError:
        return False
    if any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in text):
        return False
    alike = unicodedata.normalize("NFKC", text)
    if any(alike.count(mark) != path.replace("%", "").count(mark) for mark in _MARKS):
        return False
    return not any(part in (".", "..") for part in path.split("/"))


def override(head: RequestHead, query: str) -> str:
    """Return the header or the field of the query that names another method or path, "" if none does.

    A field `_method` in a body is not seen.
    """
    names = [name for name, _ in head.headers if plain_name(name) in _OVERRIDES]
    fields = [
        unquote_to_bytes(each.partition("=")[0]).decode("latin-1") for each in query.split("&")
    ]
    return next(iter(names + [each for each in fields if each.lower() in _FIELDS]), "")
