"""What a sandbox sees: the bubblewrap arguments for its file system, with or without an image."""

import os
import posixpath
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR
from sandboxkit.providers.local._image import Image
from sandboxkit.types import SandboxSpec

__all__ = ["AGENT", "Layout", "layout", "python_prefix"]

AGENT = "/.sandboxkit/agent"
SANDBOX_UID = 1000
_SHM_MB = 64
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FOLDERS = ("/etc", "/etc/ssl", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/var")
_OWN_BIN = "/.sandboxkit/bin"
_SHARED_ETC = (
    "alternatives",
    "ld.so.cache",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
)
"""Of the host's /etc, what programs in /usr need and what says nothing about the host."""


@dataclass(slots=True)
class Layout:
    """Arguments for bubblewrap, and what must be done for them."""

    args: list[str] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths in the sandbox and the small files to put there."""
    sources: list[str] = field(default_factory=list)
    """Host paths that are bound, and that whoever starts the sandbox must be able to reach."""
    after: list[str] = field(default_factory=list)
    """Arguments that follow the files: what makes the root read-only, for one."""

    def bind(self, source: str, target: str | None = None) -> None:
        """Show a host path read-only."""
        self.args += ["--ro-bind", source, target or source]
        self.sources.append(source)


def uid_of(user: str | None) -> int:
    """The uid inside for a spec's user, which `check` has found to be one that exists."""
    return 0 if user in ("root", "0") else SANDBOX_UID


def python_prefix() -> tuple[str, str]:
    """The running Python: its installation, and its executable there."""
    prefix = os.path.realpath(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in (version, "python3", "python"):
        executable = os.path.join(prefix, "bin", name)
        if os.access(executable, os.X_OK):
            return prefix, executable
    return prefix, os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@cache
def _system() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The host's programs and libraries: bubblewrap's arguments, and the paths they bind."""
    found = Layout()
    found.bind("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            found.args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            found.bind(path)
    for name in _SHARED_ETC:
        if os.path.exists(f"/etc/{name}"):
            found.bind(f"/etc/{name}")
    prefix, executable = python_prefix()
    if not any(_within(prefix, seen) for seen in found.sources):
        found.bind(prefix)
    for name in ("python", "python3"):
        if not os.path.exists(os.path.join(os.path.dirname(executable), name)):
            found.args += ["--symlink", executable, f"{_OWN_BIN}/{name}"]
    return tuple(found.args), tuple(found.sources)


def search_path(image: Image | None) -> str:
    """PATH inside."""
    if image is not None:
        return ":".join(_SYSTEM_PATH)
    own = os.path.dirname(python_prefix()[1])
    return ":".join(dict.fromkeys((own, *_SYSTEM_PATH, _OWN_BIN)))


@cache
def _accounts() -> tuple[tuple[str, bytes], ...]:
    passwd = (
        "root:x:0:0:root:/workspace:/bin/sh\n"
        f"sandbox:x:{SANDBOX_UID}:{SANDBOX_UID}:sandbox:/workspace:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    )
    group = f"root:x:0:\nsandbox:x:{SANDBOX_UID}:\nnogroup:x:65534:\n"
    hosts = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n"
    switch = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n"
    return (
        ("/etc/passwd", passwd.encode()),
        ("/etc/group", group.encode()),
        ("/etc/hosts", hosts.encode()),
        ("/etc/nsswitch.conf", switch.encode()),
    )


def resolver(spec: SandboxSpec) -> bytes:
    """The content of /etc/resolv.conf."""
    if spec.network == "none":
        return b""
    try:
        return Path("/etc/resolv.conf").read_bytes()
    except OSError:
        return b""


def _writable(spec: SandboxSpec) -> list[str]:
    """The folders that can be written where the root cannot."""
    folders = ["/tmp", DEFAULT_WORKDIR]
    workdir = posixpath.normpath(spec.workdir or DEFAULT_WORKDIR)
    if not any(_within(workdir, folder) for folder in folders):
        folders.append(workdir)
    return folders


def layout(spec: SandboxSpec, disk_mb: int, image: Image | None, overlay: str | None) -> Layout:
    """How the sandbox's root is put together.

    Without an image it is one sized tmpfs into which the host's programs are bound. With one, it
    is an overlay whose upper half is in the folder `overlay`, which somebody sized.
    """
    root = Layout()
    size = str(disk_mb << 20)
    if image is None:
        root.args += ["--size", size, "--tmpfs", "/"]
        for folder in _FOLDERS:
            root.args += ["--perms", "0755", "--dir", folder]
        args, sources = _system()
        root.args += args
        root.sources += sources
        root.files += [*_accounts(), ("/etc/resolv.conf", resolver(spec))]
    else:
        root.args += ["--overlay-src", str(image.root)]
        root.args += ["--overlay", f"{overlay}/upper", f"{overlay}/work", "/"]
        root.sources.append(str(image.root))
    root.args += ["--proc", "/proc", "--dev", "/dev"]
    root.args += ["--size", str(_SHM_MB << 20), "--perms", "1777", "--tmpfs", "/dev/shm"]
    if spec.reuse == "reset":
        # Message queues exist without the file system, which shows them. In /proc the sandbox's one
        # user owns files whose modes and values would last from job to job.
        root.args += ["--mqueue", "/dev/mqueue"]
        root.after += ["--remount-ro", "/proc"]
    root.args += ["--remount-ro", "/dev"]
    if spec.profile == "strict":
        folders = _writable(spec)
        share = str((disk_mb << 20) // len(folders))
        for folder in folders:
            mode = "1777" if folder == "/tmp" else "0755"
            root.args += ["--size", share, "--perms", mode, "--tmpfs", folder]
        root.after += ["--remount-ro", "/"]
    elif image is None:
        root.args += ["--perms", "1777", "--dir", "/tmp", "--perms", "1777", "--dir", "/var/tmp"]
        root.args += ["--perms", "0755", "--dir", DEFAULT_WORKDIR]
    else:
        root.args += ["--perms", "0755", "--dir", DEFAULT_WORKDIR]
    return root
