"""Pulls an image from a registry with skopeo, a program of its own: no daemon is needed."""

import os
import re
import shutil
from pathlib import Path

import anyio

from sandboxkit.errors import ConfigurationError, ImageNotFoundError, ProviderUnavailableError

SCHEME = "docker://"
_REFERENCE = re.compile(
    r"docker://(?:(?P<host>localhost|[\w-]+(?:\.[\w-]+)+|\[[\da-fA-F:]+\]|[\w-]+(?=:\d+/))(?::\d+)?/)?"
    r"[a-z\d]+(?:[._-]+[a-z\d]+)*(?:/[a-z\d]+(?:[._-]+[a-z\d]+)*)*(?::[\w.-]{1,128})?(?:@sha256:[\da-f]{64})?"
)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|\[::1\]")
_POLICIES = ("/etc/containers/policy.json", "~/.config/containers/policy.json")
# The registry answered that it has no such image, or none for this user.
_MISSING = re.compile(
    r"unknown|not found|denied|unauthorized|authentication required|no image found|invalid reference",
    re.IGNORECASE,
)
_LOG = re.compile(r'time="[^"]*" level=\w+ msg=')
_LONGEST = 500


def is_remote(image: str) -> bool:
    """Return whether an image is one of a registry: "docker://NAME[:TAG][@sha256:DIGEST]"."""
    return image.startswith(SCHEME)


async def pull(image: str, layout: Path) -> None:
    """Write an image of a registry to a new folder, as an OCI layout for this machine's architecture.

    Logins are those of `docker login` and `skopeo login`. Raises ConfigurationError if there is no skopeo,
    ImageNotFoundError if the registry does not have the image or refuses it, and ProviderUnavailableError
    if the registry does not answer.
    """
    reference = _REFERENCE.fullmatch(image)
    if reference is None:
        raise ImageNotFoundError(
            f"image={image!r} is not the name of an image, such as 'docker://python:3.11-slim'"
        )
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise ConfigurationError(
            f"image={image!r} needs skopeo to be pulled: install it (Debian's package skopeo), or use "
            "provider='docker'"
        )
    argv = [skopeo, "--override-os=linux"]
    if not any(os.path.exists(os.path.expanduser(path)) for path in _POLICIES):
        argv.append("--insecure-policy")  # it refuses to work without one; docker has none either
    argv += ["copy", "--quiet"]
    if reference["host"] and _LOOPBACK.fullmatch(reference["host"]):
        argv.append("--src-tls-verify=false")
    done = await anyio.run_process([*argv, image, f"oci:{layout}:image"], check=False)
    if done.returncode:
        text = _LOG.sub("", " ".join(done.stderr.decode(errors="replace").split()))[-_LONGEST:]
        if _MISSING.search(text):
            raise ImageNotFoundError(
                f"image={image!r} cannot be pulled: {text}; check its name, and for a private one run: "
                "docker login HOST"
            )
        raise ProviderUnavailableError(f"image={image!r} cannot be pulled: {text}")
