"""Creates namespaces, kept by descriptors, that control what a sandbox's user sees of the host."""

import ctypes
import fcntl
import os
import shlex
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from sandboxkit.errors import ConfigurationError, SandboxStartError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers.local._readable import readable
from sandboxkit.providers.local._start_errors import namespace_failure

_HELPER_PATIENCE = 30.0
_CLONE_NEWNET, _SIOCSIFFLAGS, _IFF_UP = 0x40000000, 0x8914, 1
_COVERS = ("/mnt", "/media", "/srv", "/opt", "/home", "/var/tmp", "/tmp")


def _hiding_folder(path: str) -> str | None:
    """Return the topmost folder above `path` that others cannot enter; None if they can enter all."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & stat.S_IXOTH:
            return str(parent)
    return None


def free_folder(sources: list[str]) -> str:
    """Return a host folder that can serve as a mount point, because no source is in it.

    Raises SandboxStartError if there is none.
    """
    for folder in _COVERS:
        inside = any(f"{source}/".startswith(f"{folder}/") for source in sources)
        if os.path.isdir(folder) and not os.path.islink(folder) and not inside:
            return folder
    raise SandboxStartError(f"an image needs one of {', '.join(_COVERS)} as a mount point")


def namespace_of(
    command: list[str], kind: str, prepare: Callable[[int], None] = lambda _: None
) -> int:
    """Return a descriptor of the `kind` namespace of a helper program.

    `command` must print "ready" in the namespace and then wait for the end of its input.
    `prepare` gets the helper's pid. Raises SandboxStartError if the helper fails.
    """
    ours, theirs = socket.socketpair()
    # A fork of this process must not keep the helper's input open.
    for end in (ours, theirs):
        close_in_forks(end)
    with (
        ours,
        theirs,
        subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as helper,
    ):
        assert helper.stdout is not None
        assert helper.stderr is not None
        theirs.close()
        if (
            not readable(helper.stdout.fileno(), _HELPER_PATIENCE)
            or helper.stdout.readline() != b"ready\n"
        ):
            helper.kill()
            message = helper.stderr.read().decode(errors="replace").strip()
            raise namespace_failure(
                f"a namespace ({kind}) for sandboxes cannot be made: "
                + (message or f"no result within {_HELPER_PATIENCE:.0f} s")
            )
        try:
            prepare(helper.pid)
            namespace = os.open(f"/proc/{helper.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            helper.kill()  # or Popen and the helper would wait for each other
            raise
        ours.close()
        helper.wait()
    return namespace


def new_network(settings: list[str]) -> int:
    """Return a descriptor of a new network namespace with a loopback, in which these settings are 0. Raises OSError.

    A start waits for this, and a helper program would take ten times as long.
    """
    # A thread of its own, because it stays in the namespace.
    with ThreadPoolExecutor(1, "sandboxkit-network") as own:
        return own.submit(_network, settings).result()


def _network(settings: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "a network namespace")
    with socket.socket(type=socket.SOCK_DGRAM) as any_:
        fcntl.ioctl(any_, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    for name in settings:
        with suppress(OSError):  # it may be read-only in a container
            Path(name).write_text("0")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@cache
def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(f"{name} is missing: install util-linux")
    return found


def reveal(sources: tuple[str, ...]) -> str:
    """Return shell commands that cover each folder that others cannot enter by one with the sources."""
    # rbind, because an ordinary user's namespace may not uncover what lower mounts hide.
    hidden: dict[str, list[str]] = {}
    for source in sources:
        folder = _hiding_folder(source)
        if folder is not None:
            hidden.setdefault(folder, []).append(source)
    if not hidden:
        return ""
    holder = free_folder(list(sources))
    # With a narrower umask others could not enter the folders that are made here either.
    lines = ["umask 022", f"mount -t tmpfs -o mode=0700,size=1m sandboxkit {holder}"]
    for number, (folder, paths) in enumerate(hidden.items()):
        for position, path in enumerate(paths):
            lines += _mount(f"{holder}/{number}-{position}", path, path)
        lines.append(f"mount -t tmpfs -o mode=0755,size=1m sandboxkit {shlex.quote(folder)}")
        for position, path in enumerate(paths):
            lines += _mount(path, f"{holder}/{number}-{position}", path)
        lines.append(f"mount -o remount,bind,ro {shlex.quote(folder)}")
    lines += [f"umount -l {holder}", ""]
    return "\n".join(lines)


def _mount(target: str, source: str, like: str) -> list[str]:
    at, of = shlex.quote(target), shlex.quote(source)
    if os.path.isdir(like):
        return [f"mkdir -p {at}", f"mount --rbind {of} {at}"]
    return [f'mkdir -p "$(dirname {at})"', f": > {at}", f"mount --rbind {of} {at}"]
