"""Make a git repository from the objects, references and index of another one. Runs in a judge's sandbox."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zlib
from collections.abc import Callable

_KEPT = re.compile(
    "(?s)HEAD|index|packed-refs|refs/(?!replace/).+|objects/(pack/pack-[0-9a-f]+[.]pack|[0-9a-f]{2}/[0-9a-f]{38})"
)
"""No settings, hooks and replacements, and no lists of objects: git makes the index of a pack from its objects."""
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n[pack]\n\tthreads = 1\n[index]\n\tthreads = 1\n"
_ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1"}


def repository(files: dict[str, bytes], folder: str) -> Callable[..., str]:
    """Make a repository in `folder` from the files of another one's `.git`; return a function that runs git in it.

    Raises an error for an object whose name is not the hash of its content.
    """

    for name in ("objects", "refs"):
        os.mkdir(os.path.join(folder, name))

    def git(*arguments: str) -> str:
        env = {**os.environ, **_ENV, "GIT_DIR": folder}
        done = subprocess.run(
            ["git", *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True
        )
        if done.returncode != 0:
            raise OSError(f"git {arguments[0]}: {done.stderr[-200:].decode(errors='replace')}")
        return done.stdout.decode(errors="surrogateescape")

    kept = {name: each for name, each in files.items() if _KEPT.fullmatch(name)}
    for name, content in {**kept, "config": _CONFIG}.items():
        path, parts = os.path.join(folder, name), name.split("/")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        if parts[0] != "objects":
            continue
        if parts[1] == "pack":
            git("index-pack", path)
        elif hashlib.sha1(zlib.decompress(content)).hexdigest() != "".join(parts[1:]):
            raise OSError(f"the object {name!r} has another content")
    return git
