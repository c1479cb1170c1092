"""Bearer tokens, which identify clients and hold their quotas."""

import hmac
import logging
import string
from dataclasses import dataclass, field
from pathlib import Path

from sandboxkit import ConfigurationError

_log = logging.getLogger("sandboxkit")
_SHORTEST = 16
_LETTERS = frozenset(string.ascii_letters + string.digits + "-_.")


@dataclass(frozen=True, slots=True)
class Token:
    """A client's token. Raises ConfigurationError for a short secret, an invalid name or a quota below 1."""

    name: str
    """The client's name in metrics and in the tags of its sandboxes."""
    secret: str = field(repr=False)
    quota: int | None = None
    """Maximum number of the client's submissions, programs and commands that run or wait, and of its
    sandboxes; None: no limit of its own."""

    def __post_init__(self) -> None:
        if not self.name or not _LETTERS.issuperset(self.name):
            raise ConfigurationError(
                f"token name {self.name!r}: use letters, digits, '-', '_', '.'"
            )
        if len(self.secret) < _SHORTEST:
            raise ConfigurationError(f"token {self.name!r}: give at least {_SHORTEST} characters")
        if self.quota is not None and self.quota < 1:
            raise ConfigurationError(f"token {self.name!r}: quota={self.quota!r} is below 1")


ANYONE = Token("anyone", "0" * _SHORTEST)
"""The client of every request to a service without tokens."""


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read tokens from a file with lines `NAME SECRET [QUOTA]`, in which `#` begins a comment.

    A file that other users may read is warned about. Raises ConfigurationError for an invalid line and for a file without tokens; the message never
    contains a secret.
    """
    if path.stat().st_mode & 0o077:
        _log.warning("warning: other users of this machine may read %s: chmod 600 it", path)
    tokens = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or (len(words) == 3 and not words[2].isdigit()):
            raise ConfigurationError(f"{path}, line {number}: write NAME SECRET [QUOTA]")
        tokens.append(Token(words[0], words[1], int(words[2]) if len(words) == 3 else None))
    if not tokens:
        raise ConfigurationError(f"{path} has no token; write a line NAME SECRET [QUOTA] for each")
    return tuple(tokens)


def client_of(tokens: tuple[Token, ...], authorization: str | None) -> Token | None:
    """Return the token in an Authorization header; None if it contains none of `tokens`.

    Without `tokens` every request gets `ANYONE`. The time that this takes does not depend on the secrets.
    """
    if not tokens:
        return ANYONE
    kind, _, given = (authorization or "").partition(" ")
    found = None
    for token in tokens:
        if hmac.compare_digest(token.secret.encode(), given.strip().encode()):
            found = token
    return found if kind.lower() == "bearer" else None
