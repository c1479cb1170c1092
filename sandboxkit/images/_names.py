"""Checks names of images that somebody else chose: they name an image of a registry, never a file of this machine."""

import re
from typing import Self

from sandboxkit._calls import _arguments
from sandboxkit.errors import ConfigurationError

_PART = r"[a-z\d]+(?:(?:\.|_{1,2}|-+)[a-z\d]+)*"
_LABEL = r"[A-Za-z\d](?:[A-Za-z\d-]*[A-Za-z\d])?"
_HOST = rf"(?:localhost(?::\d+)?|{_LABEL}(?:\.{_LABEL})+(?::\d+)?|{_LABEL}:\d+|\[[\da-fA-F:]+\](?::\d+)?)/"
_NAME = re.compile(
    rf"(?:docker://)?((?:{_HOST})?{_PART}(?:/{_PART})*)(:[\w][\w.-]{{0,127}})?(@sha256:[\da-f]{{64}})?",
    re.ASCII,
)
_OURS = re.compile(r"sha256|[\da-f]{64}|sandboxkit-(?:snapshot|built)")
"""Ids, and the repositories of snapshots and builds, which may be those of others."""
_LONGEST = 512


class RegistryImage(str):
    """The name of an image of a registry that a task, a row of a data set or a Dockerfile gives.

    A name may begin with "docker://". Raises ConfigurationError, which begins with `where`, for anything else,
    such as a folder, an archive or the id of an image in a daemon.
    """

    __slots__ = ()

    def __new__(cls, name: object, where: str = "an image") -> Self:
        """Check the name."""
        match = _NAME.fullmatch(name) if isinstance(name, str) and len(name) <= _LONGEST else None
        if match is None or _OURS.fullmatch(match[1]):
            raise ConfigurationError(
                f"{where}: {_arguments.shown(name)} is not the name of an image of a registry, such as "
                "'python:3.11-slim'; what somebody else wrote cannot name a folder or an archive of this machine: "
                "give your own as image= in Python"
            )
        return super().__new__(cls, "".join(filter(None, match.groups())))


def image_on(provider: str, image: str | None) -> str | None:
    """Return the value of the provider's option `image` for an image; a caller's own stays as it is."""
    if not isinstance(image, RegistryImage):
        return image
    if provider == "local":  # which would take the name for a path
        return f"docker://{image}"
    if provider == "docker" and not re.search(r":[^/]+$", image):
        return (
            f"{image}:latest"  # or the daemon would take it for the beginning of an image's id, too
        )
    return str(image)


def qualified(name: str, where: str) -> str:
    """Return the name with its registry, docker.io unless it has another; see `RegistryImage` for errors."""
    image = RegistryImage(name, where)
    host, slash, _ = image.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"
