"""Images from recipes: steps that one process runs in a sandbox, whose files are kept as a snapshot."""

from sandboxkit.images._build import TAG
from sandboxkit.images._image import TTL, Image

__all__ = ["TAG", "TTL", "Image"]
