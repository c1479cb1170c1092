"""Dataset: a snapshot of a folder that sandboxes mount."""

import os
from dataclasses import dataclass

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit.datasets._store import DatasetStore
from sandboxkit.errors import ConfigurationError


@explained
@dataclass(frozen=True, slots=True, init=False)
class Dataset:
    """A snapshot of a folder for the option `mounts`, named by the digest of its content.

    `Dataset("folder")` reads the whole folder and copies it into the store below the state folder,
    unless the store has that content already. It returns when the snapshot is complete, so call it in
    a thread where an event loop must go on. Later changes of the folder have no effect.
    `Dataset(digest="sha256:...")` names a snapshot that is already stored.

    A snapshot keeps names, contents, symbolic links, and whether the owner may execute a file. Every
    user of a sandbox can read all of it. Setuid bits, owners, times and extended attributes are not
    kept. A stored snapshot stays until `sandboxkit cleanup --datasets` finds that nothing uses it;
    this process counts as a user until it ends.

    Raises ConfigurationError if the path is no folder, or if the folder has a special file, a link that
    leaves it, or something that cannot be read; DatasetNotFoundError for a digest that is not stored;
    CapacityError if the disk is full.
    """

    digest: str
    """The text "sha256:" with 64 hexadecimal digits."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, digest: str | None = None):
        if (path is None) == (digest is None):
            raise ConfigurationError(
                f"Dataset(path={_arguments.shown(path)}, digest={_arguments.shown(digest)}): give "
                "either a folder or the digest of a stored dataset"
            )
        store = DatasetStore()
        if path is not None:
            found = store.add(_arguments.local_path("path", path))
        else:
            found = _arguments.text("digest", digest)
            store.use(found)
        object.__setattr__(self, "digest", found)
