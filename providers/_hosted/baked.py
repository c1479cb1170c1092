"""This user's records of the images that `sandboxkit bake` made; they contain the agent."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import state_folder
from sandboxkit.providers._hosted import install

__all__ = ["Baked", "BakedImages"]


@dataclass(frozen=True, slots=True)
class Baked:
    """An image with the agent built in, made by `sandboxkit bake`."""

    image: str
    """The image from which it was made."""
    reference: str
    """The vendor's reference, which new sandboxes use instead of `image`."""
    version: str
    """The version of its agent, see `install.version`."""

    @property
    def current(self) -> bool:
        """Whether it has the agent of this sandboxkit version; starts ignore all other baked images."""
        return self.version == install.version()


class BakedImages:
    """Records of one account's baked images, one file each in the user's state folder."""

    def __init__(self, provider: str, account: str) -> None:
        """`account` identifies the vendor account; file names contain only its hash."""
        self._prefix = f"{provider}-{_short(account)}-"

    def find(self, image: str) -> Baked | None:
        """Return the record of the image baked from `image`, or None."""
        try:
            return _read(self._path(image))
        except ConfigurationError:
            return None  # the state folder is unusable; `keep` raises the error

    def keep(self, baked: Baked) -> None:
        """Store the record; it replaces an earlier one of the same `image`."""
        path = self._path(baked.image)
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(8)}")
        part.write_text(json.dumps(asdict(baked)))
        os.replace(part, path)

    def forget(self, baked: Baked) -> None:
        """Delete the record, unless a newer one for the same image has replaced it."""
        if self.find(baked.image) == baked:
            self._path(baked.image).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Baked]:
        for path in sorted(_folder().glob(f"{self._prefix}*.json")):
            if (baked := _read(path)) is not None:
                yield baked

    def _path(self, image: str) -> Path:
        return _folder() / f"{self._prefix}{_short(image)}.json"


def _folder() -> Path:
    return state_folder() / "baked"


def _read(path: Path) -> Baked | None:
    try:
        return Baked(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # missing, or written by another version


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
