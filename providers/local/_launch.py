"""Starts bubblewrap with its descriptors, control groups and limits, and watches its process."""

import asyncio
import os
import re
import resource
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxkit.errors import SandboxStartError
from sandboxkit.provider import close_in_forks, start_time
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.launch import agent_flags
from sandboxkit.providers._gvisor import is_gvisor
from sandboxkit.providers.local import (
    _arguments,
    _bwrap,
    _cgroup,
    _gvisor,
    _landlock,
    _layout,
    _seccomp,
    _start_errors,
    _state,
)
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._counters import Counters
from sandboxkit.providers.local._host_uid import LeasedUid
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.providers.local._landlock import is_landlock
from sandboxkit.providers.local._namespaces import free_folder, new_network
from sandboxkit.types import SandboxSpec

MARK = "SANDBOXKIT_START"
"""Precedes the sandbox's id in the command line of its processes until they execute the agent.

An environment variable would not do: an ordinary user cannot read that of another uid.
"""

_OPEN_FILES = 8192
"""Open file limit of the agent; that of a command is half of it."""
_KILL_PATIENCE = 5.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

_CHILD = re.compile(rb'"child-pid": *(\d+)\D')
_contents: dict[bytes, int] = {}
_unreaped: list[int] = []
"""Pids of children that outlive the provider which started them."""


def _runs_on(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False  # this process is a fork, and the child is its parent's


def _readable(content: bytes) -> int:
    """Open a new descriptor that reads `content` from its start."""
    if content not in _contents:
        _contents[content] = _memfd(content)
    return os.open(f"/proc/self/fd/{_contents[content]}", os.O_RDONLY | os.O_CLOEXEC)


def _memfd(content: bytes) -> int:
    """Open a new file in memory, at its start."""
    memory = os.memfd_create("sandboxkit")
    os.pwrite(memory, content, 0)
    return memory


class Launched:
    """One sandbox's processes, as their parent process sees them."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        info: int,
        errors: int,
        groups: list[str],
        counters: Counters,
        lent: LeasedUid | None,
        namespaces: list[int],
    ) -> None:
        self.groups, self.counters = groups, counters
        self._lent = lent
        self._namespaces = namespaces
        self.exited = anyio.Event()
        self.on_exit: Callable[[], None] | None = None
        self._process = process
        self._info: int | None = info
        self._errors = errors
        self._monitor = os.pidfd_open(process.pid)
        self.init_pid = 0
        self.status: int | None = None
        """The exit status of bubblewrap, as `subprocess` has it: its program's, with 128 plus the number of a signal."""
        self._init: int | None = None
        self._words = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._monitor, self._ended)

    def _ended(self) -> None:
        self._words = os.pread(self._errors, 4096, 0)
        if self._lent is not None:
            self._lent.give_back()
        self.release()
        self.status = self._process.wait()
        self.exited.set()
        if self.on_exit is not None:
            self.on_exit()

    def release(self) -> None:
        """Stop watching and close all descriptors. A process that still runs is left alone. Idempotent."""
        if self._monitor < 0:
            return
        self._loop.remove_reader(self._monitor)
        self.counters.close()
        if self._lent is not None:
            self._lent.leave()
        held = (self._monitor, self._info, self._errors, self._init, *self._namespaces)
        for descriptor in held:
            if descriptor is not None:
                os.close(descriptor)
        self._monitor, self._info, self._init, self._namespaces = -1, None, None, []
        if self._process.poll() is None:
            # The process outlives us on purpose; without this, Popen's destructor would warn.
            self._process.returncode = 0
            _unreaped.append(self._process.pid)

    def find_init(self) -> bool:
        """Find PID 1, once bubblewrap has reported its pid; return whether it is known."""
        if self._info is not None and self._monitor >= 0:
            found = _CHILD.search(os.pread(self._info, 4096, 0))
            if found is not None:
                self.init_pid = int(found[1])
                os.close(self._info)
                self._info = None
                while self._namespaces:
                    os.close(self._namespaces.pop())  # bubblewrap has entered it
                with suppress(ProcessLookupError):
                    self._init = os.pidfd_open(self.init_pid)
        return self._init is not None

    def processes(self) -> dict[int, int]:
        """Return host pid and start time of the monitor (the outer bubblewrap) and of PID 1."""
        found = {pid: start_time(pid) for pid in (self._process.pid, self.init_pid)}
        return {pid: started for pid, started in found.items() if started}

    def limit(self, pid: int, limits: dict[int, int]) -> None:
        """Set resource limits for a process of the sandbox and for its future children."""
        for name, value in limits.items():
            resource.prlimit(pid, name, (value, value))

    async def kill(self) -> None:
        """Kill the sandbox; return when none of its processes is left. Idempotent."""
        if not self.exited.is_set() and not self.find_init():
            # Wait until bubblewrap reports PID 1: killed before that, it could leave PID 1 behind.
            with anyio.move_on_after(_KILL_PATIENCE):
                while not self.find_init() and not self.exited.is_set():  # noqa: ASYNC110
                    await anyio.sleep(0.001)
        if self._init is not None:
            _state.kill(self._init)
            with anyio.move_on_after(_KILL_PATIENCE):
                # PID 1 ends after all other processes inside, and the monitor after PID 1.
                await self.exited.wait()
        if not self.exited.is_set():
            _state.kill(self._monitor)
            await self.exited.wait()

    def stderr_text(self) -> str:
        """Return the first 4096 bytes that bubblewrap and the agent wrote to stderr, as text."""
        words = self._words if self._monitor < 0 else os.pread(self._errors, 4096, 0)
        return words.decode(errors="replace").strip()


def _rlimits() -> dict[int, int]:
    """Return limits: no core dumps, which the host would handle, and at most 8192 open files."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    return {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: files}


@dataclass(slots=True)
class _Start:
    """A bubblewrap process that waits for its arguments, and our ends of its connections."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    info: int
    errors: int
    arguments: list[tuple[socket.socket, bytes]]
    lent: LeasedUid | None
    namespaces: list[int]
    """A mount namespace in which the image belongs to the lent uid, and a network namespace."""

    def proceed(self) -> None:
        """Send the arguments, unless sent before. They always fit in the socket's buffer."""
        for ours, options in self.arguments:
            ours.sendall(options)
        self.close()

    def close(self) -> None:
        """Close the argument sockets. Bubblewrap ends if it has received no arguments. Idempotent."""
        for ours, _ in self.arguments:
            # Closing is not enough: a child forked meanwhile may have a copy.
            ours.shutdown(socket.SHUT_WR)
            ours.close()
        self.arguments.clear()


def _start(
    spec: SandboxSpec,
    host: HostUser,
    begun: _state.SandboxFolder,
    image: LocalImage | None,
    disk_mb: int,
    rlimits: dict[int, int],
    mounts: Mapping[str, str],
    volumes: Mapping[str, str],
    base: Base | None,
) -> _Start:
    agent, program = str(binary.path()), str(_bwrap.find())
    own = [agent, *_bwrap.own_paths()]
    below = [str(image.root)] if image is not None else []
    below += [str(base.store)] if base is not None else []
    overlay = free_folder([*below, *mounts.values(), *volumes.values(), *own]) if below else None
    root = _layout.layout(spec, disk_mb, image, overlay, mounts, volumes, base)
    runsc = _gvisor.find() if is_gvisor(spec) else None
    open_files = rlimits[resource.RLIMIT_NOFILE] // 2
    sources = [*root.sources, *own, *([runsc] if runsc is not None else [])]
    with ExitStack() as inherited, ExitStack() as kept:
        # An ordinary user's images, snapshots and volumes belong to that user; no other uid can change
        # their files.
        lent = host.lend(sources) if host.makes_namespaces or not (below or volumes) else None
        if lent is not None:
            kept.callback(lent.give_back)
        namespace = None
        uid = None if lent is None else lent.uid

        def prepare() -> None:
            if base is not None and image is None and overlay is not None and uid is not None:
                base.prepare(overlay, disk_mb, uid)

        # In an overlay only the owner of the lower layer's files can change them.
        lower = [str(image.root)] if image is not None and image.extracted else []
        lower += [str(base.root)] if base is not None else []
        owned = [*lower, *dict.fromkeys(volumes.values())]
        if lent is not None and owned:
            namespace = host.owning(lent, owned, sources, prepare)
            if namespace is None:
                lent.give_back()
                lent = None
            else:
                kept.callback(os.close, namespace)
        settings = [] if runsc is not None else _arguments.network_settings(spec)
        network = None
        if settings and host.makes_namespaces:
            network = new_network(settings)
            kept.callback(os.close, network)
        prefix = host.prefix(sources, rlimits, lent, namespace, network)

        def inherit(descriptor: int) -> int:
            inherited.callback(os.close, descriptor)
            return descriptor

        def keep(descriptor: int) -> int:
            kept.callback(os.close, descriptor)
            return descriptor

        def pair() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            # When this process dies, bubblewrap must see our end close, whatever forks are left.
            for end in (ours, theirs):
                close_in_forks(end)
            kept.callback(ours.close)
            return ours, inherited.enter_context(theirs)

        ours, theirs = pair()
        listener = inherited.enter_context(_listener(begun.folder))
        errors = keep(os.memfd_create("stderr"))
        # A file and not a pipe: writing to a pipe without a reader would kill bubblewrap and leave
        # its child behind, which waits for it.
        info = keep(os.memfd_create("info"))
        os.fchmod(errors, 0o600)  # no program inside opens it through /proc
        passed = [info]
        files = [inherit(_readable(content)) for _, content in root.files]
        held = None if lent is None else lent.lock
        if runsc is not None:
            config = inherit(_memfd(_gvisor.config(spec, image, disk_mb, open_files)))
            options = _gvisor.arguments(
                spec, root, agent=agent, runsc=runsc, files=[*files, config], info=info, held=held
            )
            files.append(config)
            # PID 1 keeps the listener open, which tells other containers that the sandbox lives.
            inside = _gvisor.command()
        else:
            passed.append(inherit(_readable(_seccomp.program())))
            fds = {"info": info, "seccomp": passed[1]}
            options = _arguments.arguments(
                spec, root, agent=agent, image=image, files=files, held=held, **fds
            )
            workdir = "" if image is None else image.workdir
            inside = _arguments.agent_command(spec, listener.fileno(), open_files, workdir)
        if held is not None:
            passed.append(held)
        arguments: list[tuple[socket.socket, bytes]] = []

        def under(options: list[str], command: list[str]) -> list[str]:
            """Return the command line of a bubblewrap that runs `command` with these options."""
            sender, reader = pair()
            passed.append(reader.fileno())
            arguments.append((sender, _joined(options)))
            mark = ["--setenv", MARK, begun.sandbox_id]  # --clearenv removes it again
            return [program, *mark, "--args", str(reader.fileno()), "--", *command]

        command = under(options, inside)
        if settings and network is None:
            command = [*_arguments.SET, " ".join(settings), *command]
            command = under(_arguments.network_arguments(spec), command)
        if base is not None and image is None and overlay is not None and namespace is None:
            command = under(base.outer(overlay, disk_mb, detach=spec.detach), command)
        if image is not None and overlay is not None:
            etc = [inherit(_readable(each)) for each in (_layout.resolver(spec), _layout.HOSTS)]
            users = _layout.accounts(image, base)
            passwd = None if users is None else inherit(_memfd(users))
            files += [*etc, *([] if passwd is None else [passwd])]
            outer = _arguments.outer_arguments(
                spec, image, base, overlay, disk_mb, *etc, passwd=passwd
            )
            command = under(outer, command)
        process = subprocess.Popen(
            [*prefix, *command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            pass_fds=[*passed, *files, listener.fileno()],
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        kept.pop_all()
    namespaces = [each for each in (namespace, network) if each is not None]
    return _Start(process, ours, info, errors, arguments, lent, namespaces)


def _start_confined(
    spec: SandboxSpec, begun: _state.SandboxFolder, rlimits: dict[int, int], pids: int
) -> _Start:
    """Start the supervisor of a sandbox with Landlock, which waits for its configuration."""
    with ExitStack() as inherited, ExitStack() as kept:
        ends = [socket.socketpair() for _ in range(2)]
        for end in (end for pair in ends for end in pair):
            close_in_forks(end)
        (ours, theirs), (sender, reader) = ends
        for end in (theirs, reader, listener := _listener(begun.folder)):
            inherited.enter_context(end)
        kept.callback(ours.close)
        kept.callback(sender.close)
        errors, info = os.memfd_create("stderr"), os.memfd_create("info")
        kept.callback(os.close, errors)
        kept.callback(os.close, info)
        lent = _landlock.lend()
        if lent is not None:
            kept.callback(lent.give_back)
        uid = None if lent is None else lent.uid
        work = begun.make_work(uid)
        content = _landlock.config(spec, work, pids=pids, own_uid=uid is not None)
        user = None if uid is None else f"{uid}:{uid}"
        flags = agent_flags(
            replace(spec, user=user, workdir=f"{work}/workspace"),
            listen_fd=_landlock.LISTENER,
            open_files=rlimits[resource.RLIMIT_NOFILE] // 2,
        )
        inherited.callback(os.close, config := _memfd(content))
        fds = (reader.fileno(), config, listener.fileno(), info)
        process = subprocess.Popen(
            [str(binary.path()), "confine", *map(str, fds), *flags],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            pass_fds=[*fds, *([] if lent is None else [lent.lock])],
            env=_landlock.environment(work),
            cwd="/",
            start_new_session=True,
        )
        kept.pop_all()
    return _Start(process, ours, info, errors, [(sender, b"begin")], lent, [])


def _joined(options: list[str]) -> bytes:
    """Return options as bubblewrap reads them, each followed by NUL.

    Raises SandboxStartError for one with NUL, whose rest would be an option of its own.
    """
    for option in options:
        if "\0" in option:
            raise SandboxStartError(
                f"{option[:100]!r} has a NUL character, and cannot be given to the sandbox: remove it, for example from "
                "the variables of the image"
            )
    try:
        return "".join(f"{option}\0" for option in options).encode()
    except UnicodeEncodeError as error:
        raise SandboxStartError(
            f"{error.object[error.start :][:100]!r} is no text that UTF-8 can have, and cannot be given to the sandbox"
        ) from error


def _listener(folder: Path) -> socket.socket:
    """Return the listening socket for further clients; its path is not visible in the sandbox."""
    listener = socket.socket(socket.AF_UNIX)
    close_in_forks(listener)
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path through the descriptor stays below the length limit of socket paths.
        listener.bind(f"/proc/self/fd/{place}/{_state.SOCKET}")
        listener.listen()
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(place)
    return listener


async def launch(
    spec: SandboxSpec,
    host: HostUser,
    begun: _state.SandboxFolder,
    *,
    image: LocalImage | None,
    disk_mb: int,
    pids: int,
    groups: list[str],
    mounts: Mapping[str, str],
    volumes: Mapping[str, str],
    base: Base | None,
) -> tuple[Launched, socket.socket]:
    """Start the sandbox's processes; return them and the socket of the stream to the agent.

    If this fails or is cancelled, no process is left. Raises SandboxStartError.
    """
    _unreaped[:] = [pid for pid in _unreaped if _runs_on(pid)]
    rlimits = _rlimits() | (_landlock.limits(spec) if is_landlock(spec) else {})
    try:
        # On the loop's own thread, which lasts: --die-with-parent acts at the end of the thread.
        if is_landlock(spec):
            start = _start_confined(spec, begun, rlimits, pids)
        else:
            start = _start(spec, host, begun, image, disk_mb, rlimits, mounts, volumes, base)
    except OSError as error:
        raise _start_errors.not_started(spec, str(error)) from error
    counters = Counters(groups, cpus=spec.cpus is not None)
    launched = Launched(
        start.process, start.info, start.errors, groups, counters, start.lent, start.namespaces
    )
    try:
        if groups:
            # On a busy machine this may block in the kernel for tens of milliseconds.
            await anyio.to_thread.run_sync(_cgroup.join, groups, start.process.pid)
        if host.may_limit or is_landlock(spec):
            launched.limit(start.process.pid, rlimits)
        # Bubblewrap has waited until here: its children inherit the groups and the limits.
        start.proceed()
    except BaseException as error:
        start.connection.close()
        start.close()
        with anyio.CancelScope(shield=True):
            await launched.kill()
        if isinstance(error, OSError):
            raise _start_errors.not_started(spec, launched.stderr_text() or str(error)) from error
        raise
    return launched, start.connection
