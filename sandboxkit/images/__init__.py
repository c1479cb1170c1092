"""Images from recipes: steps that one process runs in a sandbox, whose files are kept as a snapshot."""

from sandboxkit.images._image import Image
from sandboxkit.images._names import RegistryImage, image_on

__all__ = ["Image", "RegistryImage", "image_on"]
