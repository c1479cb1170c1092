"""Where the agent's binary lies."""

import platform
from pathlib import Path

from sandboxkit.errors import ConfigurationError

__all__ = ["loader", "packed", "path"]

_ARCHITECTURES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
}


def path(arch: str | None = None) -> Path:
    """The static Linux binary for `arch` (as uname, Docker or Go name it), default this machine's.

    Raises ConfigurationError for another architecture, or where the package was not built.
    """
    return _built("agent-linux-{}", arch)


def packed(arch: str | None = None) -> Path:
    """The same, compressed with gzip."""
    return _built("agent-linux-{}.gz", arch)


def loader(arch: str | None = None) -> Path:
    """A program of less than 1 KiB that becomes the agent whose parts lie beside it.

    Its parts are the files /.sandboxkit/p0, p1 and so on.
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
