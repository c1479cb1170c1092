"""Host names in rules, URLs and TLS: a normal form that excludes IP addresses."""

import re

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_MOST = 253
"""The longest host name (characters) in DNS."""


def host(text: str) -> str | None:
    """Return a host name in lower case, or None if `text` is not a host name.

    No form of an IP address is accepted: inet_aton(3) reads a name whose last label is a decimal or
    hexadecimal number as an address.
    """
    name = text.lower() if text.isascii() else ""
    if len(name) > _MOST or not _NAME.fullmatch(name):
        return None
    return None if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def port(text: str) -> int | None:
    """Parse a port from 1 to 65535 in plain decimal digits; return None if `text` is not one."""
    number = int(text) if _PORT.fullmatch(text) else 0
    return number if 1 <= number <= 65535 else None
