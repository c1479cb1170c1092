"""Host uids for sandboxes of an ordinary user, from the user's subordinate ids, or of root in a container."""

import fcntl
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandboxkit.errors import SandboxStartError
from sandboxkit.providers.local import _bwrap
from sandboxkit.providers.local._namespaces import namespace_of, reveal, tool
from sandboxkit.providers.local._start_errors import namespace_failure, start_failure

_LEAST = 64
"""Minimum number of subordinate ids; with fewer, sandboxes share the user's uid."""
_PATIENCE = 10.0
_NS_GET_PARENT = 0xB702
_DEPTH = 4
"""Folder levels to search: enough for lib/python3.11/site-packages/PACKAGE."""
_INOTIFY_INSTANCES = 16
"""Limit of each sandbox. The kernel also counts them together for the user, whose limit may be 128."""


def subordinate_range(file: str) -> range:
    """Return the longest range that /etc/subuid or /etc/subgid gives this user, or an empty one."""
    uid = os.geteuid()
    names = {str(uid)}
    try:
        names.add(pwd.getpwuid(uid).pw_name)
        lines = Path(file).read_text(errors="replace").splitlines()
    except (KeyError, OSError):
        return range(0)
    found = range(0)
    for line in lines:
        name, *numbers = line.strip().split(":")
        if name in names and len(numbers) == 2 and all(each.isdigit() for each in numbers):
            first, count = map(int, numbers)
            found = max(found, range(first, first + count), key=len)
    return found


class SubordinateIds:
    """A user namespace with this user as uid 0, in which sandboxes can run with `uids` of the host.

    The user owns the namespace, and so may signal and limit its processes whatever their uid.
    It has no name on the host and ends with its last process and descriptor.
    """

    def __init__(self, roots: range | None = None) -> None:
        """Create the namespace, with root's own range `roots` if given.

        Raises SandboxStartError, ConfigurationError or OSError.
        """
        command = [tool("unshare"), "--user", "--", "sh", "-c", "echo ready\nread -r _"]
        self._mounts: dict[tuple[str, ...], int] = {}
        self._roots = roots is not None
        if roots is not None:
            self.uids, self._first = roots, roots.start

            def write_maps(pid: int) -> None:
                for name in ("uid_map", "gid_map"):
                    lines = f"0 0 1\n1 {roots.start} {len(roots)}"
                    Path(f"/proc/{pid}/{name}").write_text(lines)

            self._users = namespace_of(command, "user", write_maps)
            return
        uids, gids = subordinate_range("/etc/subuid"), subordinate_range("/etc/subgid")
        count = min(len(uids), len(gids))
        if count < _LEAST:
            raise SandboxStartError(
                f"/etc/subuid and /etc/subgid give this user {count} ids, but at least {_LEAST} are needed"
            )
        # The middle half: the user's rootless Podman and Docker containers use the ends.
        self.uids = uids[count // 4 : count - count // 4]
        self._first = uids.start

        def map_ids(pid: int) -> None:
            for program, own, first in (
                ("newuidmap", os.geteuid(), uids.start),
                ("newgidmap", os.getegid(), gids.start),
            ):
                _run([program, str(pid), "0", str(own), "1", "1", str(first), str(count)])

        self._users = namespace_of(command, "user", map_ids)

    def prefix(self, uid: int, sources: list[str]) -> list[str]:
        """Return the prefix that runs a command as `uid`, one of `uids`, with access to these paths."""
        key = tuple(dict.fromkeys(sources))
        if key not in self._mounts:
            self._mounts[key] = self._reveal(key)
        return self._enter(uid - self._first + 1, self._mounts[key])

    def close(self) -> None:
        """Close the namespaces; processes that run in them keep them."""
        for descriptor in (self._users, *self._mounts.values()):
            os.close(descriptor)
        self._mounts.clear()

    def _reveal(self, sources: tuple[str, ...]) -> int:
        """Create a mount namespace in which all of `uids` can read the sources, and test a sandbox in it."""
        # An ordinary user's sandboxes can then share the user's uid.
        hidden = None if self._roots else next(_unreadable(sources), None)
        if hidden is not None:
            raise SandboxStartError(f"{hidden} can be read by this user only")
        # It is read-only where bubblewrap cannot mount /proc either, and says so below.
        limit = f"echo {_INOTIFY_INSTANCES} > /proc/sys/user/max_inotify_instances || :\n"
        script = "set -e\n" + limit + reveal(sources) + "echo ready\nread -r _"
        command = [*self._enter(0), tool("unshare"), "--mount", "--propagation", "slave"]
        mounts = namespace_of([*command, "--", "sh", "-c", script], "mnt")
        problem = _bwrap.try_empty(self._enter(1, mounts))
        if problem:
            os.close(mounts)
            raise namespace_failure(problem)
        return mounts

    def _enter(self, inner: int, mounts: int | None = None) -> list[str]:
        # Opened through our /proc entry and not inherited, so that no descriptor reaches the sandbox.
        own = f"/proc/{os.getpid()}/fd"
        command = [tool("nsenter"), f"--user={own}/{self._users}"]
        if mounts is not None:
            command.append(f"--mount={own}/{mounts}")
        return [*command, f"--setuid={inner}", f"--setgid={inner}", "--"]


@contextmanager
def root_of(pid: int) -> Iterator[list[str]]:
    """Yield the command prefix of a program with all capabilities over a process that has a subordinate id.

    It runs as uid 0, which is this user, in the namespace that this user made, maybe in another process.
    """
    with ExitStack() as stack:
        own, inner = os.stat("/proc/self/ns/user"), os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        stack.callback(os.close, inner)
        while not os.path.samestat(os.fstat(outer := fcntl.ioctl(inner, _NS_GET_PARENT)), own):
            stack.callback(os.close, outer)
            inner = outer
        os.close(outer)
        entered = f"--user=/proc/{os.getpid()}/fd/{inner}"
        yield [tool("nsenter"), entered, "--setuid=0", "--setgid=0", "--"]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise start_failure(str(error)) from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise start_failure(message or f"{command[0]} failed")


def _unreadable(sources: tuple[str, ...]) -> Iterator[str]:
    """Yield paths in the sources that others cannot read, most often created with a umask of 077.

    Searches only the upper levels of each tree, and only folders of this user.
    """
    pending = [(source, 0) for source in sources]
    while pending:
        path, depth = pending.pop()
        found = os.stat(path) if depth == 0 else os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            continue
        if depth == 0 or found.st_uid == os.geteuid():
            needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
            if found.st_mode & needed != needed:
                yield path
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and depth < _DEPTH:
            pending += [(entry.path, depth + 1) for entry in os.scandir(path)]
