"""Upload and download of files and folders, as one tar stream each way.

An uploaded folder keeps modes and links. A downloaded archive is untrusted: it is read in bounded time and memory,
and nothing is written outside its target.
"""

from sandboxkit.transfers._archive import DownloadLimits, Transfer, extract

__all__ = ["DownloadLimits", "Transfer", "extract"]
