"""Starting bubblewrap: its descriptors, its control groups, its process and the end of that."""

import asyncio
import json
import os
import resource
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio

from sandboxkit.errors import SandboxStartError
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import _bwrap, _cgroup, _layout, _seccomp, _state
from sandboxkit.providers.local._host_user import HostUser, free_folder
from sandboxkit.providers.local._image import Image
from sandboxkit.types import SandboxSpec

__all__ = ["Launched", "launch"]

_OPEN_FILES = 4096
_KILL_PATIENCE = 5.0
_NO_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

_contents: dict[bytes, int] = {}
_unreaped: list["subprocess.Popen[bytes]"] = []
"""Children that outlive the provider which started them."""


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
        self.exited = anyio.Event()
        self.on_exit: Callable[[], None] | None = None
        self._process = process
        self._info = info
        self._errors = errors
        self._monitor = os.pidfd_open(process.pid)
        self._init: int | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._monitor, self._ended)

    def _ended(self) -> None:
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
        for descriptor in (self._monitor, self._info, self._errors, self._init):
            if descriptor is not None:
                os.close(descriptor)
        self._monitor, self._init = -1, None
        if self._process.poll() is None:
            _unreaped.append(self._process)

    def find_init(self) -> bool:
        """Learn which process is PID 1, if bubblewrap has said so already."""
        if self._init is None and self._monitor >= 0:
            try:
                said = os.read(self._info, 4096)
            except BlockingIOError:
                return False
            if said:
                self.init_pid = int(json.loads(said)["child-pid"])
                try:
                    self._init = os.pidfd_open(self.init_pid)
                except ProcessLookupError:
                    return False
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
                while not self.exited.is_set() and not self.find_init():
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
        if self._monitor < 0:
            return ""
        return os.pread(self._errors, 4096, 0).decode(errors="replace").strip()


def _rlimits() -> dict[int, int]:
    """No core dumps, which the host would handle, and not more open files than anybody needs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    return {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: files}


def launch(
    spec: SandboxSpec,
    host: HostUser,
    folder: Path,
    *,
    image: Image | None,
    disk_mb: int,
    groups: list[str],
) -> tuple[Launched, socket.socket]:
    """Start the sandbox's processes; the socket is the stream to the agent.

    Runs on the event loop: a parent's death signal goes by thread, and this one lasts.
    """
    _unreaped[:] = [process for process in _unreaped if process.poll() is None]
    agent = str(binary.path())
    overlay = None if image is None else free_folder([str(image.root), agent, *_bwrap.own_paths()])
    root = _layout.layout(spec, disk_mb, image, overlay)
    ours, theirs = socket.socketpair()
    inherited = [theirs.fileno()]
    errors = os.memfd_create("stderr")
    info, info_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    pipes: list[tuple[int, int]] = []
    opened = [info_write]
    process: subprocess.Popen[bytes] | None = None
    try:
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            # A path through the descriptor is short enough wherever the folder is.
            listener.bind(f"/proc/self/fd/{place}/{_state.SOCKET}")
            os.close(place)
            listener.listen()
            seccomp = _readable(_seccomp.program())
            opened.append(seccomp)
            files = []
            for _, content in root.files:
                files.append(_readable(content))
                opened.append(files[-1])
            options = _bwrap.arguments(
                spec, root, agent=agent, image=image, files=files, seccomp=seccomp, info=info_write
            )
            batches = [options]
            command = ["--", *_bwrap.agent_command(spec, listener.fileno())]
            if overlay is not None:
                batches.insert(0, _bwrap.sized_folder(overlay, disk_mb))
            for _ in batches:
                pipes.append(os.pipe2(os.O_CLOEXEC))
                opened.append(pipes[-1][0])
            program = str(_bwrap.find())
            for read, _ in reversed(pipes):
                command = ["--", program, "--args", str(read), *command]
            sources = [*root.sources, *_bwrap.own_paths(), agent]
            inherited = [listener.fileno(), *opened]
            rlimits = _rlimits()
            prefix = host.prefix(sources, rlimits)
            process = subprocess.Popen(
                [*prefix, *command[1:]],
                stdin=theirs,
                stdout=theirs,
                stderr=errors,
                pass_fds=inherited,
                env=_NO_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        launched = Launched(process, info, errors, groups)
        _cgroup.join(groups, process.pid)
        if host.may_limit:
            launched.limit(process.pid, rlimits)
        # It has waited for its arguments until here: whatever it starts has these limits.
        for (_, write), batch in zip(pipes, batches, strict=True):
            os.write(write, b"".join(arg.encode() + b"\0" for arg in batch))
    except BaseException as error:
        ours.close()
        if process is None:
            os.close(info)
            os.close(errors)
        else:
            process.kill()
            process.wait()
        if isinstance(error, OSError):
            raise SandboxStartError(
                f"the sandbox's processes cannot be started: {error}", provider="local"
            ) from error
        raise
    finally:
        for descriptor in (*opened, *(write for _, write in pipes)):
            os.close(descriptor)
    return launched, ours
