"""Data that sandboxes mount read-only: snapshots of folders, stored once and named by their content."""

from sandboxkit.datasets._dataset import Dataset
from sandboxkit.datasets._points import check_mounts
from sandboxkit.datasets._store import DatasetStore, is_digest

__all__ = ["Dataset", "DatasetStore", "check_mounts", "is_digest"]
