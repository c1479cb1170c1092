"""Who starts sandboxes on the host: never root, and what that user must be able to reach."""

import os
import resource
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sandboxkit.errors import ConfigurationError, SandboxStartError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers.local._readable import readable

__all__ = ["HostUser"]

_HIGH_UID = 2_000_000_000
"""Outside of what distributions, systemd and subordinate id ranges give to anybody."""
_NOBODY = 65534
_CAP_SYS_RESOURCE = 24
_HELPER_PATIENCE = 10.0
_OPTIONS = {resource.RLIMIT_CORE: "--core", resource.RLIMIT_NOFILE: "--nofile"}
_NO_LIMITS: Mapping[int, int] = {}
_COVERS = ("/mnt", "/media", "/srv", "/opt", "/home", "/var/tmp", "/tmp")


@cache
def _unprivileged_uid() -> int:
    """A uid of nobody's; in a container, one that exists there."""
    with open("/proc/self/uid_map") as file:
        for line in file:
            first, _, count = (int(field) for field in line.split())
            if first <= _HIGH_UID < first + count:
                return _HIGH_UID
    return _NOBODY


def _has_sys_resource() -> bool:
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)


def _hiding_folder(path: str) -> str | None:
    """The topmost folder above `path` that users other than its owner cannot enter."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & stat.S_IXOTH:
            return str(parent)
    return None


def free_folder(sources: list[str]) -> str:
    """An existing folder of the host that can be covered, because no source is in it."""
    for folder in _COVERS:
        inside = any(f"{source}/".startswith(f"{folder}/") for source in sources)
        if os.path.isdir(folder) and not os.path.islink(folder) and not inside:
            return folder
    raise SandboxStartError(f"an image needs one of {', '.join(_COVERS)} as a mount point")


class HostUser:
    """Starts programs as an unprivileged user.

    An ordinary user stays who they are. Root becomes a uid without any rights, in a mount
    namespace of ours that shows it the few things it needs of what only root can reach (a
    Python under /root). That namespace has no name on the host and ends with this process.
    """

    def __init__(self) -> None:
        self.is_root = os.geteuid() == 0
        self.may_limit = not self.is_root or _has_sys_resource()
        """Whether resource limits can be set on a running process of the user."""
        self._namespaces: dict[tuple[str, ...], int] = {}

    def owner(self) -> tuple[int, int]:
        """The uid and gid that own what a sandbox may write."""
        uid = _unprivileged_uid() if self.is_root else os.geteuid()
        return uid, uid if self.is_root else os.getegid()

    def prefix(self, sources: list[str], limits: Mapping[int, int] = _NO_LIMITS) -> list[str]:
        """What to put before a command that needs these paths.

        It sets `limits` where that cannot be done from here, see `may_limit`.
        """
        if not self.is_root:
            return []
        key = tuple(dict.fromkeys(sources))
        if key not in self._namespaces:
            self._namespaces[key] = self._make_namespace(key)
        uid, gid = self.owner()
        # Opened through our own process, not inherited: nothing of it reaches the sandbox.
        mount = f"--mount=/proc/{os.getpid()}/fd/{self._namespaces[key]}"
        command = []
        if limits and not self.may_limit:
            command = [_tool("prlimit"), *(f"{_OPTIONS[n]}={v}" for n, v in limits.items()), "--"]
        return [*command, _tool("nsenter"), mount, f"--setuid={uid}", f"--setgid={gid}", "--"]

    def close(self) -> None:
        """Give up the namespaces; running sandboxes have their own."""
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()

    def _make_namespace(self, sources: tuple[str, ...]) -> int:
        script = "set -e\n" + _reveal(sources) + "echo ready\nread -r _"
        command = [_tool("unshare"), "--mount", "--propagation", "slave", "--", "sh", "-c", script]
        ours, theirs = socket.socketpair()
        # The helper waits for its input's end, which a fork of ours must not put off.
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
                said = helper.stderr.read().decode(errors="replace").strip()
                raise SandboxStartError(
                    "a mount namespace for sandboxes cannot be made: "
                    + (said or f"nothing came of it in {_HELPER_PATIENCE:.0f} s"),
                    provider="local",
                )
            namespace = os.open(f"/proc/{helper.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            ours.close()
            helper.wait()
        return namespace


@cache
def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(
            f"as root the local provider needs {name}: install util-linux, "
            "or run as an ordinary user",
            provider="local",
        )
    return found


def _reveal(sources: tuple[str, ...]) -> str:
    """Shell commands that cover each hiding folder by an open one, with the sources in it."""
    hidden: dict[str, list[str]] = {}
    for source in sources:
        folder = _hiding_folder(source)
        if folder is not None:
            hidden.setdefault(folder, []).append(source)
    if not hidden:
        return ""
    holder = free_folder(list(sources))
    lines = [f"mount -t tmpfs -o mode=0700,size=1m sandboxkit {holder}"]
    for number, (folder, paths) in enumerate(hidden.items()):
        for position, path in enumerate(paths):
            lines += _mount(f"{holder}/{number}-{position}", path, path)
        lines.append(f"mount -t tmpfs -o mode=0755,size=1m sandboxkit {shlex.quote(folder)}")
        for position, path in enumerate(paths):
            lines += _mount(path, f"{holder}/{number}-{position}", path)
        lines.append(f"mount -o remount,ro {shlex.quote(folder)}")
    lines += [f"umount -l {holder}", ""]
    return "\n".join(lines)


def _mount(target: str, source: str, like: str) -> list[str]:
    at, of = shlex.quote(target), shlex.quote(source)
    if os.path.isdir(like):
        return [f"mkdir -p {at}", f"mount --bind {of} {at}"]
    return [f'mkdir -p "$(dirname {at})"', f": > {at}", f"mount --bind {of} {at}"]
