"""Images of strangers for the docker provider, as data: what each holds beside the test image."""

import io
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docker_here import TEST_IMAGE

__all__ = [
    "EVIL",
    "EVIL_PYTHON",
    "HONEST",
    "HOSTILE",
    "PYTHON",
    "ROOT_BY_ANOTHER_NAME",
    "TURN",
    "Image",
    "build",
]

# Any: what TOML is.
_GIVEN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("docker_images.toml").read_text())
HOME = "/home/app"
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
EVIL: str = _GIVEN["evil"]
TURN: str = _GIVEN["turn"]
PYTHON = "/usr/bin/python3"
# Notes the same, and is Python.
EVIL_PYTHON = EVIL.replace('/bin/dash "$@"', f'{PYTHON}.11 "$@"')


@dataclass(frozen=True)
class Image:
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    user: str = "app"


# Any: the fields of an image.
def _image(files: Mapping[str, str] = {}, evil: tuple[str, ...] = (), **given: Any) -> Image:
    return Image(files={**dict.fromkeys(evil, EVIL), **files}, **given)


HOSTILE = {name: _image(**given) for name, given in _GIVEN["hostile"].items()}
"""Images whose programs may run as their user, 1000, without capabilities, or not at all."""
HONEST = {name: _image(**given) for name, given in _GIVEN["honest"].items()}
"""Images that start, in standard and strict sandboxes."""

_ROOTS = PASSWD + "".join(
    f"{name}:x:0:0::/:/bin/sh\n" for name in ("toor", "1000x", "dup", "65534", "4294967296")
)
_ROOTS += "dup:x:1000:1000::/:/bin/sh\n"
ROOT_BY_ANOTHER_NAME = {
    user: Image(files={"/etc/passwd": _ROOTS}, user=user) for user in _GIVEN["root_by_another_name"]
}
"""Images with a user that may be uid 0."""


def build(tag: str, image: Image) -> None:
    """Build an image on the daemon. No program of it runs for that."""
    layer = io.BytesIO()
    files = {"/etc/passwd": PASSWD, f"{HOME}/agent": EVIL, f"{HOME}/.keep": "", **image.files}
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in (HOME, *image.links, *files):
            member = tarfile.TarInfo(path.strip("/"))
            member.mode, member.uid, member.gid = 0o755, 1000, 1000
            content = files.get(path, "").encode()
            if path in image.links:
                member.type, member.linkname = tarfile.SYMTYPE, image.links[path]
            elif path == HOME:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    recipe = f"FROM {TEST_IMAGE}\nUSER root\nADD layer.tar /\n{image.config}\nUSER {image.user}\n"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, data in (("layer.tar", layer.getvalue()), ("Dockerfile", recipe.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    command = ["docker", "build", "-q", "-t", tag, "-"]
    made = subprocess.run(command, input=context.getvalue(), capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
