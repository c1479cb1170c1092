"""Paths of the agent's binary, in its three forms."""

import platform
import shlex
import sys
from pathlib import Path

from sandboxkit.errors import ConfigurationError

_ARCHITECTURES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
}


def path(arch: str | None = None) -> Path:
    """Return the path of the static Linux agent for `arch`; the default is this machine's.

    `arch` may be the name that uname, Docker or Go uses. Raises ConfigurationError for any other
    architecture, and if the agent was not built.
    """
    return _built("agent-linux-{}", arch)


def packed(arch: str | None = None) -> Path:
    """Return the path of the agent for `arch`, compressed with gzip. Raises as `path` does."""
    return _built("agent-linux-{}.gz", arch)


def loader(arch: str | None = None) -> Path:
    """Return the path of a loader of less than 1 KiB, which joins the agent's parts and executes it.

    The parts are the files /.sandboxkit/p0, p1 and so on. Raises as `path` does.
    """
    return _built("loader-linux-{}", arch)


def _built(name: str, arch: str | None) -> Path:
    machine = (arch or platform.machine()).lower()
    if machine not in _ARCHITECTURES:
        raise ConfigurationError(f"no sandbox agent for {machine!r}: only for amd64 and arm64")
    file = Path("sandboxkit", "providers", "_agent", "bin", name.format(_ARCHITECTURES[machine]))
    root = Path(__file__).absolute().parents[3]
    # In the folder of a fresh clone Python imports these sources, but the installed package has the agent.
    for folder in (str(root), *sys.path):
        if (binary := Path(folder, file).resolve()).exists():
            return binary
    clone = (root / "agent" / "build.py").exists()
    source = shlex.quote(str(root)) if clone else "--force-reinstall sandboxkit-sdk"
    raise ConfigurationError(
        f"the sandboxkit in {str(root)!r} has no {file.name}, its agent in sandboxes, and neither "
        f"has another installation: pip install {source}"
    )
