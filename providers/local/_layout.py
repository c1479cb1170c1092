"""Builds bubblewrap's arguments for a sandbox's file system, with or without an image."""

import glob
import os
import posixpath
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.providers.local._mount_points import MountPoints
from sandboxkit.types import SandboxSpec

AGENT = "/.sandboxkit/agent"
SANDBOX_UID = 1000
MEMORY_MB = 1024
"""Memory (MB) of a sandbox by default, besides its disk."""
_LARGEST_PASSWD = 1 << 20
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FOLDERS = ("/etc", "/etc/ssl", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/var")
UPPER_FOLDERS = ("/etc", "/home", "/root", "/run", "/tmp", "/var", "/var/tmp")
"""Folders of an image that belong to the sandbox's user in its overlay."""
HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n"
_OWN_BIN = "/.sandboxkit/bin"
_SHARED_ETC = (
    "alternatives",
    "ld.so.cache",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    # Configuration that packages install for languages and libraries.
    *("java-*", "java", "dotnet", "mono", "perl", "python3*", "R", "ghc", "emacs"),
    *("fonts", "ImageMagick-*", "OpenCL", "terminfo", "texmf", "xml", "sgml"),
    *("magic", "mime.types", "mailcap", "protocols", "services", "rpc", "locale.alias"),
)
"""Patterns in the host's /etc that programs in /usr need and that reveal nothing about the host. They are
read-only in a sandbox, and unreadable there if only their owner can read them."""


@dataclass(slots=True)
class Layout:
    """Bubblewrap's arguments, with the files and host paths that they need."""

    args: list[str] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    """Small files to create: (path in the sandbox, content)."""
    sources: list[str] = field(default_factory=list)
    """Host paths that are bind-mounted; the user that starts the sandbox must be able to reach them."""
    after: list[str] = field(default_factory=list)
    """Arguments that follow the files, such as those that make the root read-only."""
    points: MountPoints = field(default_factory=MountPoints)
    """Resolves mount points within the files of the image and the snapshot."""

    def options(self, files: Sequence[int], own: Sequence[str]) -> list[str]:
        """Return all arguments; `files` are descriptors of the files' content, `own` adds what the agent needs.

        Raises SandboxStartError if the image or snapshot has a link or a file in the place of a mount point.
        """
        args = [*self.args]
        for (path, _), descriptor in zip(self.files, files, strict=True):
            args += ["--perms", "0644", "--file", str(descriptor), path]
        args += own
        return [*self.points.placed(args), *self.after]

    def bind(self, source: str, target: str | None = None) -> None:
        """Bind-mount a host path read-only, by default at the same path."""
        self.args += ["--ro-bind", source, target or source]
        self.sources.append(source)


def uid_of(user: str | None) -> int:
    """Return the uid inside for a spec's user, which `check` has validated."""
    return 0 if user in ("root", "0") else SANDBOX_UID


def python_prefix() -> tuple[str, str]:
    """Return the running Python's installation folder and its executable."""
    prefix = os.path.realpath(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in (version, "python3", "python"):
        executable = os.path.join(prefix, "bin", name)
        if os.access(executable, os.X_OK):
            return prefix, executable
    return prefix, os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _above(path: str) -> list[str]:
    """Return the folders above a path. Bubblewrap would make them for its own user alone."""
    return [str(parent) for parent in reversed(Path(path).parents)][1:]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@cache
def system() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return bubblewrap's arguments for the host's programs and libraries, and the paths they bind."""
    found = Layout()
    found.bind("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            found.args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            found.bind(path)
    for pattern in _SHARED_ETC:
        for path in sorted(glob.glob(f"/etc/{pattern}")):
            found.bind(path)
    prefix, executable = python_prefix()
    if not any(_within(prefix, seen) for seen in found.sources):
        found.bind(prefix)
    for name in ("python", "python3"):
        if not os.path.exists(os.path.join(os.path.dirname(executable), name)):
            found.args += ["--symlink", executable, f"{_OWN_BIN}/{name}"]
    return tuple(found.args), tuple(found.sources)


def host_folder(path: str) -> str | None:
    """Return the folder of the host in a sandbox without an image that `path` lies in or would hide."""
    shown = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", *system()[1])
    return next((each for each in shown if _within(path, each) or _within(each, path)), None)


def search_path(image: LocalImage | None) -> str:
    """Return the value of PATH inside the sandbox."""
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
    switch = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n"
    return (
        ("/etc/passwd", passwd.encode()),
        ("/etc/group", group.encode()),
        ("/etc/hosts", HOSTS),
        ("/etc/nsswitch.conf", switch.encode()),
    )


def accounts(image: LocalImage, base: Base | None) -> bytes | None:
    """Return the image's /etc/passwd with a line for the sandbox's user, or None if nothing has to be changed."""
    points = mount_points(image, None)
    try:
        path = f"{image.root}{points.resolve('/etc')}/passwd"
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            known = file.read(_LARGEST_PASSWD + 1)
    except FileNotFoundError:
        known = b""
    except OSError:
        return None
    own = str(SANDBOX_UID).encode()
    users = [line.split(b":")[2:3] for line in known.splitlines()]
    if [own] in users or len(known) > _LARGEST_PASSWD or (base and base.has_file("/etc/passwd")):
        return None
    return known.rstrip(b"\n") + b"\nsandbox:x:%b:%b::/workspace:/bin/sh\n" % (own, own)


def shm_size(spec: SandboxSpec) -> int:
    """Return the bytes of /dev/shm: the sandbox's memory, which its files are in."""
    return (spec.memory_mb or MEMORY_MB) << 20


def resolver(spec: SandboxSpec) -> bytes:
    """Return the content of /etc/resolv.conf, empty without a network."""
    if spec.network == "none":
        return b""
    try:
        return Path("/etc/resolv.conf").read_bytes()
    except OSError:
        return b""


def folders_made(*, image: bool) -> list[str]:
    """Return bubblewrap's options that make the folders of a sandbox, beside those of `system`."""
    own = ("/tmp", "/var/tmp", DEFAULT_WORKDIR, "/proc", "/dev", AGENT)
    more = UPPER_FOLDERS if image else (*_FOLDERS, *(path for path, _ in _accounts()))
    return [word for path in (*more, *own) for word in ("--dir", path)]


def kept_folders(spec: SandboxSpec) -> list[str]:
    """Return the folders that a snapshot keeps of a sandbox without an image."""
    return writable(spec) if spec.profile == "strict" else ["/"]


def writable(spec: SandboxSpec) -> list[str]:
    """Return the writable folders of a sandbox with a read-only root."""
    folders = ["/tmp", DEFAULT_WORKDIR]
    workdir = posixpath.normpath(spec.workdir or DEFAULT_WORKDIR)
    if not any(_within(workdir, folder) for folder in folders):
        folders.append(workdir)
    return folders


def layout(
    spec: SandboxSpec,
    disk_mb: int,
    image: LocalImage | None,
    overlay: str | None,
    mounts: Mapping[str, str],
    volumes: Mapping[str, str],
    base: Base | None = None,
) -> Layout:
    """Return the layout of the sandbox's root.

    Without an image the root is a tmpfs of `disk_mb` into which the host's programs are bound.
    With an image it is an overlay; the caller limits the size of `overlay`, the folder with the
    upper layer. `mounts` maps folders in the sandbox to those on the host that they show read-only,
    and `volumes` to those that they show writable. `base` is a snapshot whose files lie below, over those
    of the image.
    """
    root = Layout()
    size = str(disk_mb << 20)
    if image is None:
        if base is not None and overlay is not None and spec.profile != "strict":
            root.args += base.overlay(overlay, "/")
        else:
            root.args += ["--size", size, "--tmpfs", "/"]
        for folder in (*_FOLDERS, *_above(python_prefix()[0]), *_above(f"{_OWN_BIN}/python")):
            root.args += ["--perms", "0755", "--dir", folder]
        args, sources = system()
        root.args += args
        root.sources += sources
        kept = base is not None and spec.profile != "strict"
        accounts = (each for each in _accounts() if not (kept and base and base.has_file(each[0])))
        root.files += [*accounts, ("/etc/resolv.conf", resolver(spec))]
    else:
        root.args += ["--overlay-src", str(image.root)]
        if base is not None:
            root.args += ["--overlay-src", str(base.root)]
        root.args += ["--overlay", f"{overlay}/upper", f"{overlay}/work", "/"]
        root.sources.append(str(image.root))
    root.args += ["--proc", "/proc", "--dev", "/dev"]
    root.args += ["--size", str(shm_size(spec)), "--perms", "1777", "--tmpfs", "/dev/shm"]
    if spec.reuse == "reset":
        # Mounted so that a reset can find message queues, which exist even without the mount.
        # /proc is read-only: the sandbox's user owns files there whose modes and values would
        # otherwise last from job to job.
        root.args += ["--mqueue", "/dev/mqueue"]
        root.after += ["--remount-ro", "/proc"]
    root.args += ["--remount-ro", "/dev"]
    if spec.profile == "strict":
        folders = writable(spec)
        share = str((disk_mb << 20) // len(folders))
        for folder in folders:
            if base is not None and overlay is not None and folder in base.folders:
                root.args += base.overlay(overlay, folder)
                continue
            mode = "1777" if folder == "/tmp" else "0755"
            root.args += ["--size", share, "--perms", mode, "--tmpfs", folder]
        root.after += ["--remount-ro", "/"]
    elif image is None:
        root.args += ["--perms", "1777", "--dir", "/tmp", "--perms", "1777", "--dir", "/var/tmp"]
        root.args += ["--perms", "0755", "--dir", DEFAULT_WORKDIR]
    else:
        root.args += ["--perms", "0755", "--dir", DEFAULT_WORKDIR]
    for target, source in mounts.items():
        root.bind(source, target)  # bubblewrap adds nosuid and nodev to every bind mount
    for target, source in volumes.items():
        root.args += ["--bind", source, target]
        root.sources.append(source)
    if base is not None:
        root.sources.append(str(base.store))
    root.points = mount_points(image, base)
    return root


def mount_points(image: LocalImage | None, base: Base | None) -> MountPoints:
    """Return how to resolve mount points in a sandbox with an image, a snapshot, both or neither."""
    layers = [base.root] if base is not None else []
    if image is not None:
        return MountPoints([*layers, image.root], f"image={image.reference!r}", follow=True)
    return MountPoints(layers, f"snapshot {base.id!r}" if base is not None else "")
