"""The manifest of an uploaded archive: names, modes and digests, no times. A replay compares manifests."""

import hashlib
import tarfile
import tempfile
from collections.abc import AsyncIterable, AsyncIterator
from typing import Self

from sandboxkit.recording._content import Json, Secrets

_IN_MEMORY = 16 << 20
_MASKED = 64 << 20
"""Secrets are masked before the digest only in files of up to this size (bytes)."""


class Manifest:
    """Copies an archive while it is streamed, and lists its members. Use it in a `with` block."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._copy = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - `__exit__` closes it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._copy.close()

    async def passed(self, tar: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield the archive's chunks unchanged, and copy them."""
        async for chunk in tar:
            self._copy.write(chunk)
            yield chunk

    def members(self) -> Json:
        """Return the name, type, mode, and link target or SHA-256 of each member; an incomplete one is
        omitted."""
        found: list[Json] = []
        self._copy.seek(0)
        try:
            with tarfile.open(fileobj=self._copy, mode="r:") as archive:
                for member in archive:
                    entry = {"name": member.name, "mode": f"{member.mode:o}"}
                    if member.isreg():
                        entry["sha256"] = self._digest(archive, member)
                    elif member.isdir():
                        entry["type"] = "directory"
                    else:
                        entry["target"] = member.linkname
                    found.append({name: self._text(each) for name, each in entry.items()})
        except tarfile.TarError:
            found.append({"name": "(the archive is incomplete)"})
        return found

    def _text(self, text: str) -> str:
        return self._secrets.mask_text(text).encode(errors="backslashreplace").decode()

    def _digest(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
        content = archive.extractfile(member)
        assert content is not None
        if member.size <= _MASKED:
            return hashlib.sha256(self._secrets.mask(content.read())).hexdigest()
        digest = hashlib.sha256()
        while piece := content.read(1 << 20):
            digest.update(piece)
        return digest.hexdigest()
