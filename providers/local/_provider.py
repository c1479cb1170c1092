"""The local provider: sandboxes as bubblewrap namespaces of this machine, with the agent inside."""

import datetime
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, UNIXSocketStream

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.launch import agent_flags, config_of
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.local import _bwrap, _cgroup, _state
from sandboxkit.types import Command, Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["LocalProvider"]

_MEMORY_MB, _DISK_MB, _PIDS = 1024, 1024, 256
_START_SECONDS = 30.0
_USERS = {None: "sandbox", "sandbox": "sandbox", "1000": "sandbox", "root": "root", "0": "root"}


class LocalProvider(AgentProvider):
    """Sandboxes in fresh user, mount, pid, net, ipc, uts and cgroup namespaces of this machine.

    `image` is None for a minimal root with this machine's read-only /usr and Python, or a
    folder that holds a root file system. Nothing runs unisolated: where the kernel refuses
    namespaces, so does `create`.
    """

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        super().__init__()
        self._users: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what namespaces cannot give; see `Provider.check`."""
        if sys.platform != "linux":
            raise ConfigurationError("provider 'local' needs Linux; use provider='docker' here")
        if spec.user not in _USERS:
            raise ConfigurationError(
                f"user={spec.user!r}: provider 'local' has the users 'sandbox' and 'root' only"
            )
        if spec.gpu is not None:
            raise ConfigurationError(
                f"gpu={spec.gpu!r}: provider 'local' offers no GPU; leave it out"
            )
        if spec.disk_mb is not None and spec.image is not None and spec.profile != "strict":
            raise ConfigurationError(
                f"disk_mb={spec.disk_mb}: provider 'local' cannot bound a writable image root; "
                "use profile='strict'"
            )
        if _cgroup.version() == 0:
            for field in ("memory_mb", "cpus", "pids"):
                if getattr(spec, field) is not None:
                    raise ConfigurationError(
                        f"{field}={getattr(spec, field)}: this user may not make control groups here; "
                        "leave it out, or run as root or with a delegated cgroup"
                    )

    async def create(self, spec: SandboxSpec) -> str:
        """See `Provider.create`."""
        self.check(spec)
        root = _image_root(spec.image)
        sandbox_id = f"local-{secrets.token_hex(8)}"
        try:
            await self._start(sandbox_id, spec, root)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.delete(sandbox_id)
            raise
        return sandbox_id

    async def _start(self, sandbox_id: str, spec: SandboxSpec, root: Path | None) -> None:
        folder = _state.folder() / sandbox_id
        folder.mkdir(mode=0o700)
        memory_mb = spec.memory_mb or _MEMORY_MB
        listener = _listen(folder / "agent.sock")
        ours, theirs = socket.socketpair()
        info_read, info_write = os.pipe()
        try:
            flags = agent_flags(spec, user=_USERS[spec.user], listen_fd=listener.fileno())
            with _bwrap.prepared(
                spec,
                binary.path(),
                flags,
                root=root,
                memory_mb=memory_mb,
                disk_mb=spec.disk_mb or _DISK_MB,
                info_fd=info_write,
                listen_fd=listener.fileno(),
            ) as launch:
                with open(folder / "stderr", "wb") as errors:
                    process = subprocess.Popen(
                        launch.argv,
                        stdin=theirs,
                        stdout=theirs,
                        stderr=errors,
                        env=launch.env,
                        pass_fds=launch.descriptors,
                        start_new_session=True,  # a terminal's Ctrl-C is for us, not for it
                        cwd="/",
                    )
            self._processes[sandbox_id] = process
        except BaseException:
            ours.close()
            os.close(info_read)
            raise
        finally:
            theirs.close()
            listener.close()
            os.close(info_write)
        try:
            with anyio.fail_after(_START_SECONDS):
                pid = await _child_pid(info_read)
                if pid is None:
                    raise _refusal(folder / "stderr")
                _cgroup.create(
                    sandbox_id, _cgroup.Limits(memory_mb, spec.pids or _PIDS, spec.cpus), pid
                )
                now = time.time()
                _state.write(
                    _state.Record(
                        id=sandbox_id,
                        pid=pid,
                        started=_state.start_time(pid),
                        created=now,
                        expires=None if spec.lifetime is None else now + spec.lifetime,
                        image=spec.image,
                        tags=dict(spec.tags),
                    )
                )
        except TimeoutError:
            ours.close()
            raise SandboxStartError(
                f"bubblewrap did not start within {_START_SECONDS:.0f} s", provider=self.name
            ) from None
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(info_read)
        stream = await UNIXSocketStream.from_socket(ours)
        self._users[sandbox_id] = _USERS[spec.user]
        try:
            await self._attach(sandbox_id, stream, config_of(spec))
        except SandboxStartError as error:
            raise _refusal(folder / "stderr") from error

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        """See `Provider.exec`. A namespace maps one user: commands cannot run as another."""
        own = self._users.get(sandbox_id, "sandbox")
        if command.user is not None and _USERS.get(command.user) != own:
            raise ConfigurationError(
                f"user={command.user!r}: provider 'local' runs commands as the sandbox's own user "
                f"{own!r}; choose it when making the sandbox"
            )
        return await super().exec(sandbox_id, command, output)

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`. Removes what dead sandboxes left behind on the way."""
        for record in _state.records():
            if not record.alive:
                await self._remove_remains(record.id)
            elif tags.items() <= record.tags.items():
                yield _info(record)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """See `Provider.get`."""
        return _info(self._living(sandbox_id))

    async def delete(self, sandbox_id: str) -> None:
        """See `Provider.delete`."""
        self._users.pop(sandbox_id, None)
        await self._forget(sandbox_id)
        process = self._processes.pop(sandbox_id, None)
        record = _state.read(sandbox_id)
        if record is not None:
            await _kill(record)
        if process is not None:
            # Not the record's process but its parent; alone here when the start was cut short.
            if record is None:
                process.kill()
            await anyio.to_thread.run_sync(process.wait)
        await self._remove_remains(sandbox_id)

    async def diagnose(self) -> Diagnosis:
        """See `Provider.diagnose`."""
        isolation = "Linux namespaces, seccomp, no capabilities; shares this machine's kernel"
        try:
            self.check(SandboxSpec())
            program = _bwrap.program()
        except ConfigurationError as error:
            return Diagnosis(False, isolation, "bubblewrap not found", str(error))
        try:
            await self.delete(await self.create(SandboxSpec(lifetime=60)))
        except SandboxError as error:
            return Diagnosis(False, isolation, f"bubblewrap at {program}", str(error))
        groups = _cgroup.version()
        detail = (
            f"bubblewrap, limits by cgroup v{groups}" if groups else "bubblewrap, limits by rlimit"
        )
        remedy = (
            ""
            if groups
            else "run as root for limits on memory, processes and CPU of a whole sandbox"
        )
        return Diagnosis(True, isolation, detail, remedy)

    async def aclose(self) -> None:
        """See `Provider.aclose`. Sandboxes that are not detached end here."""
        await super().aclose()
        for process in self._processes.values():
            process.poll()

    async def _connect(self, sandbox_id: str) -> ByteStream:
        self._living(sandbox_id)
        try:
            return await anyio.connect_unix(_state.folder() / sandbox_id / "agent.sock")
        except OSError as error:
            raise SandboxNotFoundError(
                f"sandbox {sandbox_id!r} does not answer: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from error

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if not reason and _cgroup.oom_killed(sandbox_id):
            return SandboxTerminatedError(
                f"sandbox {sandbox_id!r} ended: out of memory; raise memory_mb",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        return await super()._why_ended(sandbox_id, reason)

    async def _remove_remains(self, sandbox_id: str) -> None:
        if sandbox_id in _cgroup.names():
            await anyio.to_thread.run_sync(_cgroup.remove, sandbox_id)
        _state.remove(sandbox_id)

    def _living(self, sandbox_id: str) -> _state.Record:
        record = _state.read(sandbox_id)
        if record is None or not record.alive:
            raise SandboxNotFoundError(
                f"no sandbox {sandbox_id!r}; it may have ended",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        return record


def _image_root(image: str | None) -> Path | None:
    if image is None:
        return None
    path = Path(image)
    if not path.is_absolute() or not (path / "bin").exists():
        raise ImageNotFoundError(
            f"image={image!r}: provider 'local' takes the absolute path of a folder that holds a "
            "root file system (with /bin), or none for this machine's own /usr",
            provider="local",
        )
    return path


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        # Through the folder's descriptor: a socket's path may have 107 bytes at most.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


async def _child_pid(descriptor: int) -> int | None:
    """Read bubblewrap's report; None when it ended without one."""
    data = b""
    while True:
        await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, 4096)
        data += chunk
        if not chunk or b"}" in data:
            break
    if not data.strip():
        return None
    pid: int = json.loads(data)["child-pid"]
    return pid


def _refusal(errors: Path) -> SandboxStartError:
    said = errors.read_text(errors="replace").strip()[-500:] or "it said nothing"
    remedy = ""
    if "namespace" in said or "Operation not permitted" in said:
        remedy = (
            "; this kernel or container forbids user namespaces: allow them "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0) or use provider='docker'"
        )
    return SandboxStartError(
        f"bubblewrap could not start a sandbox: {said}{remedy}", provider="local"
    )


async def _kill(record: _state.Record) -> None:
    """Kill PID 1 of the sandbox, and with it everything inside, and wait until it is gone."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        if record.alive:  # looked at after the descriptor was opened: it is that process
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _info(record: _state.Record) -> SandboxInfo:
    def at(seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

    return SandboxInfo(
        id=record.id,
        provider="local",
        state=SandboxState.RUNNING,
        tags=record.tags,
        image=record.image,
        created_at=at(record.created),
        expires_at=None if record.expires is None else at(record.expires),
    )
