"""Paths of the agent's binary, in its three forms."""

import platform
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
    architecture, and if the package was not built.
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
    binary = Path(__file__).parent / "bin" / name.format(_ARCHITECTURES[machine])
    if not binary.exists():
        raise ConfigurationError(
            f"the sandbox agent {binary.name} was not built: reinstall the package, "
            "or run `python agent/build.py` in its source tree"
        )
    return binary
