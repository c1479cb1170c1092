"""What sandboxes mount: read-only snapshots of folders, named by their content, and writable volumes."""

from sandboxkit.datasets._dataset import Dataset
from sandboxkit.datasets._folder import Folder
from sandboxkit.datasets._snapshot import read as content_digest
from sandboxkit.datasets._store import DatasetStore, is_digest
from sandboxkit.datasets._volume import Volume, check_mounts, split_mounts, volume_of

__all__ = [
    "Dataset",
    "DatasetStore",
    "Folder",
    "Volume",
    "check_mounts",
    "content_digest",
    "is_digest",
    "split_mounts",
    "volume_of",
]
