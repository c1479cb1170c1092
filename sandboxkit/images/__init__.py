"""Images from recipes: steps that one process runs in a sandbox, whose files are kept as a snapshot."""

from sandboxkit.images._image import Image

__all__ = ["Image"]
