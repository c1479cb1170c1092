"""The unprivileged host user that starts sandboxes, and the paths this user must reach."""

import errno
import logging
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandboxkit.errors import CapacityError, ConfigurationError, SandboxError
from sandboxkit.providers._capabilities import Capability, lacking
from sandboxkit.providers.local import _cgroup, _host_uid, _id_map
from sandboxkit.providers.local._namespaces import namespace_of, reveal, tool
from sandboxkit.providers.local._start_errors import (
    REMEDY,
    namespace_failure,
    or_landlock,
    start_failure,
)
from sandboxkit.providers.local._subordinate import (
    SubordinateIds,
    root_of,
    subordinate_range,
)

_log = logging.getLogger("sandboxkit.local")

_MAKE_NAMESPACES = (
    Capability.CAP_NET_ADMIN,
    Capability.CAP_SYS_ADMIN,
    Capability.CAP_SYS_PTRACE,
)
"""Root needs these as well to run sandboxes as other users without a user namespace. For one it needs CAP_SETFCAP."""
_OPTIONS = {resource.RLIMIT_CORE: "--core", resource.RLIMIT_NOFILE: "--nofile"}
_NO_LIMITS: Mapping[int, int] = {}


class HostUser:
    """Starts programs as an unprivileged user.

    Root switches to an unprivileged uid, in a mount namespace that exposes the needed paths which
    only root can reach (such as a Python under /root). The namespace has no name on the host and
    ends with this process. Root without the capabilities for that does the same in a user namespace,
    and so does an ordinary user with the user's subordinate ids. Without subordinate ids, or with an image, a
    snapshot or a volume, which belong to the user, sandboxes run with the user's own uid.
    """

    def __init__(self) -> None:
        self.lacks = lacking(*_host_uid.NEEDED, Capability.CAP_SETFCAP)
        self._uids = None if self.lacks else _host_uid.uids()
        self.is_root = self._uids is not None
        """Whether this process may run programs as other users, whom nobody needs to lend it."""
        self.makes_namespaces = self.is_root and not lacking(*_MAKE_NAMESPACES)
        """Whether it does so without a user namespace."""
        self.may_limit = not (self.makes_namespaces and lacking(Capability.CAP_SYS_RESOURCE))
        """Whether this process can set resource limits on a running process of the user."""
        self._namespaces: dict[tuple[str, ...], int] = {}
        self._mapping: dict[int, bool] = {}
        self._warned = False
        self._ids: SubordinateIds | None = None
        self.why_shared = ""
        """Why an ordinary user's sandboxes cannot have their own uids; "" as long as they may."""

    def owner(self) -> tuple[int, int]:
        """Return the uid and gid of images and volumes, and of sandboxes without a uid of their own."""
        if self._uids is None:
            return os.geteuid(), os.getegid()
        return self._uids.start, self._uids.start

    def lend(self, sources: list[str]) -> _host_uid.LeasedUid | None:
        """Lease a uid for a sandbox that needs these paths; None if it must share that of `owner`."""
        if self._uids is not None:
            return _host_uid.lend(self._uids)
        lendable = self.subordinate(sources)
        if lendable is None:
            return None
        try:
            return _host_uid.lend(lendable)
        except CapacityError as error:
            # Only for now: running sandboxes will release theirs.
            if not self._warned:
                self._warned = True
                _log.warning("some sandboxes share this user's uid of the host: %s", error)
        except (SandboxError, OSError) as error:
            self._share(str(error))
        return None

    def subordinate(self, sources: list[str]) -> range | None:
        """Return the range of subordinate uids for sandboxes, after a check that these can read `sources`.

        No sandbox gets the first uid of the range. None if sandboxes share the user's uid; `why_shared` has
        the reason.
        """
        if self.why_shared:
            return None
        try:
            if not _cgroup.takes_other_users():
                self.why_shared = (
                    "control groups of version 1 take only processes of the user's own"
                )
            elif not subordinate_range("/etc/subuid") or not subordinate_range("/etc/subgid"):
                self.why_shared = "/etc/subuid and /etc/subgid give this user no ids"
            elif shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
                self.why_shared = "newuidmap and newgidmap are missing: install uidmap"
            else:
                if self._ids is None:
                    self._ids = SubordinateIds()
                self._ids.prefix(self._ids.uids.start, sources)
                return self._ids.uids
        except (SandboxError, OSError, subprocess.SubprocessError) as error:
            failed = start_failure(str(error))
            if failed.retryable:  # only for now, and no sandbox loses its own uid for it
                raise failed from error
            self._share(str(error))
        return None

    def _share(self, reason: str) -> None:
        self.why_shared = reason
        _log.warning("sandboxes share this user's uid of the host: %s", reason)

    def prefix(
        self,
        sources: list[str],
        limits: Mapping[int, int] = _NO_LIMITS,
        lent: _host_uid.LeasedUid | None = None,
        namespace: int | None = None,
        network: int | None = None,
    ) -> list[str]:
        """Return the command prefix that runs a command as the user `lent`, with access to these paths.

        The prefix sets `limits` if this process cannot (see `may_limit`). `namespace`, a result
        of `owning`, replaces the mount namespace for these paths. `network`, a result of `new_network`, is the
        command's network namespace; an ordinary user has none.
        """
        if lent is None and not self.is_root:
            self._refuse_to_run_as_root()
            return []
        uid, gid = self.owner() if lent is None else (lent.uid, lent.uid)
        if not self.makes_namespaces:
            if self._ids is None:
                self._ids = SubordinateIds(self._uids)
            return self._ids.prefix(uid, sources)
        if namespace is None:
            namespace = self._namespace(sources)
        # Opened through our /proc entry and not inherited, so that no descriptor reaches the sandbox.
        enter = [f"--mount=/proc/{os.getpid()}/fd/{namespace}"]
        enter += [] if network is None else [f"--net=/proc/{os.getpid()}/fd/{network}"]
        command = []
        if limits and not self.may_limit:
            command = [tool("prlimit"), *(f"{_OPTIONS[n]}={v}" for n, v in limits.items()), "--"]
        return [*command, tool("nsenter"), *enter, f"--setuid={uid}", f"--setgid={gid}", "--"]

    def _refuse_to_run_as_root(self) -> None:
        """Raise ConfigurationError if a sandbox that shares this user's uid would have that of the machine's root."""
        with open("/proc/self/uid_map") as file:
            inside, outside, _ = file.readline().split()
        if os.geteuid() == 0 and inside == outside == "0":
            why = f"it lacks {', '.join(self.lacks)}" if self.lacks else "it has no other uids"
            raise ConfigurationError(
                f"this process is root, but cannot run sandboxes as other users ({why}), and none runs as root{REMEDY}"
                "give it these capabilities, or start it as another user (docker run --user 1000:1000, in a pod "
                f"runAsUser: 1000){or_landlock()}"
            )

    def owning(
        self,
        lent: _host_uid.LeasedUid,
        folders: list[str],
        sources: list[str],
        prepare: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Return a mount namespace in which folders of `owner` belong to `lent`; the caller closes it.

        `prepare` is called in the namespace, by root.
        Returns None if the kernel or a folder's file system has no id-mapped mounts.
        """
        owner, _ = self.owner()

        users = -1
        try:
            users = _id_map.user_namespace(lent.uid, owner)
            return _id_map.with_owner(self._namespace(sources), folders, users, prepare)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "sandboxes with the image or volume in %s share a uid of the host, because its owner "
                    "cannot be mapped: %s",
                    error.filename,
                    error.strerror,
                )
            return None
        finally:
            if users >= 0:
                os.close(users)

    def maps_owners(self, folder: Path) -> bool:
        """Whether `owning` can map the owner of a folder, which depends on its file system.

        Raises SandboxStartError, as a CapacityError if load may be the reason.
        """
        device = os.stat(folder).st_dev
        if device not in self._mapping:
            with ExitStack() as stack:
                try:
                    users = _id_map.user_namespace(self.owner()[0], self.owner()[0])
                    stack.callback(os.close, users)
                    os.close(_id_map.with_owner(self._namespace([]), [str(folder)], users))
                    self._mapping[device] = True
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                        raise namespace_failure(f"a namespace cannot be made: {error}") from error
                    self._mapping[device] = False
        return self._mapping[device]

    @contextmanager
    def reading_files_of(self, pid: int) -> Iterator[list[str]]:
        """Yield the command prefix of a program that may read the files of a sandbox with this process."""
        if self.is_root or os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            yield []
        else:
            with root_of(pid) as prefix:
                yield prefix

    def close(self) -> None:
        """Close the namespaces; running sandboxes have their own."""
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()
        if self._ids is not None:
            self._ids.close()
            self._ids = None

    def _namespace(self, sources: list[str]) -> int:
        key = tuple(dict.fromkeys(sources))
        if key not in self._namespaces:
            script = "set -e\n" + reveal(key) + "echo ready\nread -r _"
            command = [tool("unshare"), "--mount", "--propagation", "slave"]
            self._namespaces[key] = namespace_of([*command, "--", "sh", "-c", script], "mnt")
        return self._namespaces[key]
