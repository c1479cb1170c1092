"""gVisor below bubblewrap: the command line that has `runsc` run a local sandbox's agent in its own kernel.

Bubblewrap makes the same namespaces and the same root as for other sandboxes, except that it starts `runsc`
as PID 1 in the place of the agent. gVisor shows that root read-only, with folders of its own memory over the
writable ones. All its processes are in bubblewrap's pid namespace and its state is in bubblewrap's mounts, so
both end with PID 1.
"""

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Any

from sandboxkit.errors import ConfigurationError, ProviderUnavailableError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.providers._gvisor import SOCKET, SOCKET_FOLDER, seccomp
from sandboxkit.providers.local import _layout
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.providers.local._namespaces import tool
from sandboxkit.providers.local._state import SandboxRecord
from sandboxkit.types import SandboxSpec

REMEDY = "install gVisor's runsc (Debian's package runsc), or use provider='docker'"
_NAME = "sandbox"
_RUNSC = f"{SOCKET_FOLDER}/runsc"
_CONFIG = f"{SOCKET_FOLDER}/config.json"
_FROM_OUTSIDE = tuple(128 + number for number in (SIGHUP, SIGINT, SIGKILL, SIGTERM))
"""Exit statuses of bubblewrap when a signal ended its program."""
_CAPABILITIES = ["CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
_RUN = (
    _RUNSC,
    f"--root={SOCKET_FOLDER}",
    "--rootless",
    "--ignore-cgroups",
    "--network=none",
    "--oci-seccomp",
)


def find() -> str:
    """Return the path of `runsc`. Raises ConfigurationError if there is none."""
    found = shutil.which("runsc")
    if found is None:
        raise ConfigurationError(
            f"provider 'local' cannot honour isolation='gvisor': there is no runsc; {REMEDY}"
        )
    return os.path.realpath(found)


def arguments(
    spec: SandboxSpec,
    root: _layout.Layout,
    *,
    agent: str,
    runsc: str,
    files: list[int],
    info: int,
    held: int | None,
) -> list[str]:
    """Return bubblewrap's options; `files`, `info` and `held` are inherited descriptors.

    The last of `files` has the content of `config`. There is no seccomp filter here: gVisor has its own on
    its processes, and applies ours to the programs inside.
    """
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    args += ["--unshare-cgroup-try", "--uid", "0", "--gid", "0", "--as-pid-1", "--new-session"]
    if not spec.detach:
        args.append("--die-with-parent")
    # Of the user namespace: gVisor mounts its root, and drops them before it runs a program.
    own = ["--ro-bind", agent, _layout.AGENT]
    own += ["--size", str(1 << 20), "--perms", "0700", "--tmpfs", SOCKET_FOLDER]
    own += ["--ro-bind", runsc, _RUNSC, "--file", str(files[-1]), _CONFIG]
    args += ["--cap-add", "ALL", "--clearenv", *root.options(files[:-1], own)]
    if held is not None:
        args += ["--json-status-fd", str(held)]
    return [*args, "--chdir", "/", "--info-fd", str(info)]


def command() -> list[str]:
    """Return the command line of PID 1 in bubblewrap's namespaces."""
    return [*_RUN, "run", f"--bundle={SOCKET_FOLDER}", _NAME]


def connect(meta: SandboxRecord) -> socket.socket:
    """Connect to a sandbox's agent, through a program that `runsc` starts inside.

    The program ends with the connection. Call it on the event loop's thread. Raises
    ProviderUnavailableError if the sandbox runs in another pid namespace, or the program cannot be started.
    """
    if not meta.is_here:
        raise ProviderUnavailableError(
            f"sandbox {meta.id!r} has gVisor and was started in another container; use it there"
        )
    init = [*meta.processes][-1]
    enter = [
        tool("nsenter"),
        f"--target={init}",
        "--user",
        "--mount",
        "--pid",
        "--ipc",
        "--uts",
        "--net",
    ]
    try:
        return _bridge([*enter, "--", *_RUN, "exec", _NAME, _layout.AGENT, "connect", SOCKET])
    except OSError as error:
        raise ProviderUnavailableError(
            f"no program that connects to sandbox {meta.id!r} could be started: {error}"
        ) from error


def _bridge(argv: list[str]) -> socket.socket:
    """Start a program, and return a socket for its input and output; the event loop waits for its end."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        close_in_forks(end)
    with ExitStack() as failed:
        failed.callback(ours.close)
        with theirs:
            process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        failed.callback(process.wait)
        failed.callback(process.kill)
        loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(process.pid)

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            process.wait()

        loop.add_reader(pidfd, ended)
        failed.pop_all()
    return ours


def gave_up(status: int | None) -> bool:
    """Return whether gVisor ended by itself, which only its programs can cause.

    `status` is bubblewrap's exit status, as `subprocess` has it: negative if a signal ended bubblewrap.
    """
    return status is not None and status > 0 and status not in _FROM_OUTSIDE


def config(spec: SandboxSpec, image: LocalImage | None, disk_mb: int, open_files: int) -> bytes:
    """Return the OCI configuration of the sandbox's only container."""
    env = {"PATH": _layout.search_path(image), "HOME": DEFAULT_WORKDIR, "LANG": "C.UTF-8"}
    env |= dict(image.env if image else {})
    user = str(_layout.SANDBOX_UID)
    flags = agent_flags(
        replace(spec, user=user), listen_path=SOCKET, open_files=open_files, gvisor=True
    )
    folders = _layout.writable(spec)
    share = (disk_mb << 20) // len(folders)
    modes, own = {"/tmp": ["mode=1777"]}, ["mode=0755", f"uid={user}", f"gid={user}"]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        _tmpfs("/dev/shm", _layout.shm_size(spec), "mode=1777"),
        _tmpfs(SOCKET_FOLDER, 64 << 10, "mode=0700"),
        *(_tmpfs(folder, share, *modes.get(folder, own)) for folder in folders),
    ]
    content = {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "/", "readonly": True},
        "mounts": mounts,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [_layout.AGENT, *flags],
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": 2 * open_files, "soft": 2 * open_files},
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
            ],
        },
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount", "network")],
            "seccomp": _seccomp(),
        },
    }
    return json.dumps(content).encode()


def _tmpfs(folder: str, size: int, *options: str) -> dict[str, object]:
    return {
        "destination": folder,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", f"size={size}", *options],
    }


def _seccomp() -> dict[str, Any]:
    """Return the list of system calls in OCI's format, for this machine alone."""
    arm = platform.machine() in ("aarch64", "arm64")
    profile = seccomp()
    del profile["archMap"]
    return {**profile, "architectures": ["SCMP_ARCH_AARCH64" if arm else "SCMP_ARCH_X86_64"]}
