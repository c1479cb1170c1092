"""Starting bubblewrap: its descriptors, its control groups, its process and the end of that."""

import asyncio
import os
import re
import resource
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxkit.errors import SandboxStartError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import _bwrap, _cgroup, _doctor, _layout, _seccomp, _state
from sandboxkit.providers.local._counters import Counters
from sandboxkit.providers.local._host_user import HostUser, free_folder
from sandboxkit.providers.local._image import Image
from sandboxkit.types import SandboxSpec

__all__ = ["MARK", "Launched", "launch"]

MARK = "SANDBOXKIT_START"
"""Names the sandbox in the environment of what is to become its agent, until it has."""

_OPEN_FILES = 4096
_KILL_PATIENCE = 5.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

_CHILD = re.compile(rb'"child-pid": *(\d+)\D')
_contents: dict[bytes, int] = {}
_unreaped: list[int] = []
"""Children that outlive the provider which started them, by pid."""


def _runs_on(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False  # we are a fork of the process whose child it is


def _readable(content: bytes) -> int:
    """A new descriptor that reads `content` from its start."""
    if content not in _contents:
        memory = os.memfd_create("sandboxkit")
        os.write(memory, content)
        _contents[content] = memory
    return os.open(f"/proc/self/fd/{_contents[content]}", os.O_RDONLY | os.O_CLOEXEC)


class Launched:
    """One sandbox's processes as their parent sees them."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", info: int, errors: int, groups: list[str]
    ) -> None:
        self.groups = groups
        self.counters = Counters(groups)
        self.exited = anyio.Event()
        self.on_exit: Callable[[], None] | None = None
        self._process = process
        self._info: int | None = info
        self._errors = errors
        self._monitor = os.pidfd_open(process.pid)
        self.init_pid = 0
        self._init: int | None = None
        self._words = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._monitor, self._ended)

    def _ended(self) -> None:
        self._words = os.pread(self._errors, 4096, 0)
        self.release()
        self._process.wait()
        self.exited.set()
        if self.on_exit is not None:
            self.on_exit()

    def release(self) -> None:
        """Watch no longer. A process that still runs is left to itself."""
        if self._monitor < 0:
            return
        self._loop.remove_reader(self._monitor)
        self.counters.close()
        for descriptor in (self._monitor, self._info, self._errors, self._init):
            if descriptor is not None:
                os.close(descriptor)
        self._monitor, self._info, self._init = -1, None, None
        if self._process.poll() is None:
            # It runs on by intent; the object would warn of that at the interpreter's end.
            self._process.returncode = 0
            _unreaped.append(self._process.pid)

    def find_init(self) -> bool:
        """Learn which process is PID 1, if bubblewrap has said so already."""
        if self._info is not None and self._monitor >= 0:
            found = _CHILD.search(os.pread(self._info, 4096, 0))
            if found is not None:
                self.init_pid = int(found[1])
                os.close(self._info)
                self._info = None
                with suppress(ProcessLookupError):
                    self._init = os.pidfd_open(self.init_pid)
        return self._init is not None

    def processes(self) -> dict[int, int]:
        """Host pids and start times of the monitor and of PID 1."""
        found = {pid: _state.start_time(pid) for pid in (self._process.pid, self.init_pid)}
        return {pid: started for pid, started in found.items() if started is not None}

    def limit(self, pid: int, limits: dict[int, int]) -> None:
        """Resource limits for one of its processes and what that starts from now on."""
        for name, value in limits.items():
            resource.prlimit(pid, name, (value, value))

    async def kill(self) -> None:
        """End it, and return when no process of it is left."""
        if not self.exited.is_set() and not self.find_init():
            # It is between its start and its first word: an end in there could leave PID 1 behind.
            with anyio.move_on_after(_KILL_PATIENCE):
                while not self.find_init() and not self.exited.is_set():  # noqa: ASYNC110
                    await anyio.sleep(0.001)
        if self._init is not None:
            _state.kill(self._init)
            with anyio.move_on_after(_KILL_PATIENCE):
                # The monitor ends after PID 1, which ends after everything else in there.
                await self.exited.wait()
        if not self.exited.is_set():
            _state.kill(self._monitor)
            await self.exited.wait()

    def said(self) -> str:
        """What bubblewrap and the agent wrote on stderr."""
        words = self._words if self._monitor < 0 else os.pread(self._errors, 4096, 0)
        return words.decode(errors="replace").strip()


def _rlimits() -> dict[int, int]:
    """No core dumps, which the host would handle, and not more open files than anybody needs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    return {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: files}


@dataclass(slots=True)
class _Start:
    """A started bubblewrap that waits for its arguments, and this process's ends to it."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket
    info: int
    errors: int
    arguments: list[tuple[socket.socket, list[str]]]

    def proceed(self) -> None:
        """Give it the arguments, unless it has them. A socket holds more than they can be."""
        for ours, options in self.arguments:
            ours.sendall(b"".join(option.encode() + b"\0" for option in options))
        self.close()

    def close(self) -> None:
        """Let it end, if it has no arguments yet: without any it can execute nothing."""
        for ours, _ in self.arguments:
            # Not only closed: a child that was forked meanwhile may have a copy.
            ours.shutdown(socket.SHUT_WR)
            ours.close()
        self.arguments.clear()


def _start(
    spec: SandboxSpec,
    host: HostUser,
    begun: _state.Begun,
    image: Image | None,
    disk_mb: int,
    rlimits: dict[int, int],
) -> _Start:
    agent, program = str(binary.path()), str(_bwrap.find())
    own = [agent, *_bwrap.own_paths()]
    overlay = None if image is None else free_folder([str(image.root), *own])
    root = _layout.layout(spec, disk_mb, image, overlay)
    prefix = host.prefix([*root.sources, *own], rlimits)
    with ExitStack() as inherited, ExitStack() as kept:

        def inherit(descriptor: int) -> int:
            inherited.callback(os.close, descriptor)
            return descriptor

        def keep(descriptor: int) -> int:
            kept.callback(os.close, descriptor)
            return descriptor

        def pair() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            # Their end must see ours close when this process dies, whatever it has forked.
            for end in (ours, theirs):
                close_in_forks(end)
            kept.callback(ours.close)
            return ours, inherited.enter_context(theirs)

        ours, theirs = pair()
        listener = inherited.enter_context(_listener(begun.folder))
        errors = keep(os.memfd_create("stderr"))
        # A file and not a pipe: bubblewrap, which would be killed by one that nobody reads any
        # more, would leave its child behind, which waits for it.
        info = keep(os.memfd_create("info"))
        passed = [info, inherit(_readable(_seccomp.program()))]
        files = [inherit(_readable(content)) for _, content in root.files]
        options = _bwrap.arguments(
            spec, root, agent=agent, image=image, files=files, info=passed[0], seccomp=passed[1]
        )
        command = ["--", *_bwrap.agent_command(spec, listener.fileno())]
        arguments: list[tuple[socket.socket, list[str]]] = []
        batches = [options]
        if image is not None and overlay is not None:
            files.append(inherit(_readable(_layout.resolver(spec))))
            outer = _bwrap.outer_arguments(spec, image, overlay, disk_mb, files[-1])
            batches.append(outer)
        for batch in batches:
            sender, reader = pair()
            passed.append(reader.fileno())
            arguments.append((sender, batch))
            command = ["--", program, "--args", str(reader.fileno()), *command]
        process = subprocess.Popen(
            [*prefix, *command[1:]],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            pass_fds=[*passed, *files, listener.fileno()],
            env={**_ENVIRONMENT, MARK: begun.sandbox_id},
            cwd="/",
            start_new_session=True,
        )
        kept.pop_all()
    return _Start(process, ours, info, errors, arguments)


def _listener(folder: Path) -> socket.socket:
    """The socket for further clients. Its path is not in the sandbox."""
    listener = socket.socket(socket.AF_UNIX)
    close_in_forks(listener)
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        # A path through the descriptor is short enough wherever the folder is.
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
    begun: _state.Begun,
    *,
    image: Image | None,
    disk_mb: int,
    groups: list[str],
) -> tuple[Launched, socket.socket]:
    """Start the sandbox's processes; the socket is the stream to the agent.

    Nothing of it runs any more if this fails or is cancelled.
    """
    _unreaped[:] = [pid for pid in _unreaped if _runs_on(pid)]
    rlimits = _rlimits()
    try:
        # On the loop's own thread, which lasts: a parent's death signal goes by thread.
        start = _start(spec, host, begun, image, disk_mb, rlimits)
    except OSError as error:
        raise SandboxStartError(
            f"the sandbox's processes cannot be started: {error}", provider="local"
        ) from error
    launched = Launched(start.process, start.info, start.errors, groups)
    try:
        if groups:
            # The kernel may let this wait for tens of milliseconds on a busy machine.
            await anyio.to_thread.run_sync(_cgroup.join, groups, start.process.pid)
        if host.may_limit:
            launched.limit(start.process.pid, rlimits)
        # It has waited until here: whatever it starts is in the groups and has the limits.
        start.proceed()
    except BaseException as error:
        start.connection.close()
        start.close()
        with anyio.CancelScope(shield=True):
            await launched.kill()
        if isinstance(error, OSError):
            raise _doctor.start_error(launched.said() or str(error)) from error
        raise
    return launched, start.connection
