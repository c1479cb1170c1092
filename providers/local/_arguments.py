"""Bubblewrap's command line for one sandbox."""

from dataclasses import replace

from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.providers.local import _layout
from sandboxkit.providers.local._base import Base
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.types import SandboxSpec

SET = (
    "/bin/sh",
    "-c",
    'for name in $1; do { echo 0 >"$name"; } 2>/dev/null; done; shift; exec "$@"',
    "sh",
)
"""A command prefix that sets the settings in the next argument to 0 before it runs the rest.

In a container whose /proc/sys is read-only it has no effect. Then no low port can be bound, and a reset finds
connections in TIME_WAIT and replaces the sandbox.
"""


def arguments(
    spec: SandboxSpec,
    root: _layout.Layout,
    *,
    agent: str,
    image: LocalImage | None,
    files: list[int],
    seccomp: int,
    info: int,
    held: int | None,
) -> list[str]:
    """Return bubblewrap's options; `files`, `seccomp`, `info` and `held` are inherited descriptors.

    Bubblewrap's outer process keeps `held` open until everything inside has ended; no process
    inside gets it.
    """
    uid = str(_layout.uid_of(spec.user))
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    args += ["--unshare-cgroup-try", "--disable-userns"]
    args += ["--uid", uid, "--gid", uid, "--hostname", "sandbox"]
    args += ["--as-pid-1", "--new-session"]
    if not spec.detach:
        args.append("--die-with-parent")
    args += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_KILL"]
    env = {"PATH": _layout.search_path(image), "HOME": DEFAULT_WORKDIR, "LANG": "C.UTF-8"}
    args.append("--clearenv")
    for name, value in (env | dict(image.env if image else {})).items():
        args += ["--setenv", name, value]
    args += root.options(files, ["--ro-bind", agent, _layout.AGENT])
    if held is not None:
        # Passed as the status descriptor, the only one that bubblewrap keeps open. Nobody reads it.
        args += ["--json-status-fd", str(held)]
    return [*args, "--chdir", "/", "--seccomp", str(seccomp), "--info-fd", str(info)]


def network_settings(spec: SandboxSpec) -> list[str]:
    """Return the settings of a sandbox's own network namespace that are to be 0; [] without such a namespace.

    Its programs may bind every port. The next job of a sandbox that is reset must not find the last one's
    connections in TIME_WAIT. Only a process with a capability over the namespace can set that, and no process
    of the sandbox has one: so the namespace is made before the sandbox, by root or by an outer bubblewrap.
    """
    names = ["ip_unprivileged_port_start"]
    names += ["tcp_max_tw_buckets"] if spec.reuse == "reset" else []
    return [f"/proc/sys/net/ipv4/{each}" for each in names] if spec.network == "none" else []


def network_arguments(spec: SandboxSpec) -> list[str]:
    """Return the options of an outer bubblewrap that sees the host, in a new network namespace.

    Its command has CAP_NET_ADMIN over that namespace. It has uid 0, because bubblewrap refuses to
    start another bubblewrap with capabilities as another uid; CAP_SETFCAP lets that one map uid 0.
    """
    args = ["--unshare-user", "--unshare-net", "--uid", "0", "--gid", "0", "--dev-bind", "/", "/"]
    if not spec.detach:
        args.append("--die-with-parent")
    return [*args, "--cap-drop", "ALL", "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_SETFCAP"]


def outer_arguments(
    spec: SandboxSpec,
    image: LocalImage,
    base: Base | None,
    folder: str,
    disk_mb: int,
    resolver: int,
    hosts: int,
    *,
    passwd: int | None,
) -> list[str]:
    """Return the options of an outer bubblewrap that sees the host, with a sized tmpfs at `folder`.

    The tmpfs holds the upper layer of the image's overlay; bubblewrap's own tmpfs for it has no
    size limit. The upper layer gets common folders that belong to the sandbox's user, because
    those of the image may belong to somebody else. Those of a snapshot keep their modes.
    """
    args = ["--unshare-user", "--dev-bind", "/", "/"]
    if not spec.detach:
        args.append("--die-with-parent")
    args += ["--size", str(disk_mb << 20), "--perms", "0755", "--tmpfs", folder]
    args += ["--perms", "0755", "--dir", f"{folder}/work"]
    points = _layout.mount_points(image, None)
    for name in ("/", *_layout.UPPER_FOLDERS):
        if points.is_folder(name):
            mode = 0o1777 if name.endswith("tmp") else 0o755
            kept = None if base is None else base.folder_mode(name)
            perms = f"{mode if kept is None else kept:04o}"
            args += ["--perms", perms, "--dir", f"{folder}/upper{name}".rstrip("/")]
    etc = f"{folder}/upper{points.resolve('/etc')}"
    args += ["--file", str(resolver), f"{etc}/resolv.conf"]
    args += ["--file", str(hosts), f"{etc}/hosts"]
    if passwd is not None:
        args += ["--perms", "0644", "--file", str(passwd), f"{etc}/passwd"]
    return args


def agent_command(spec: SandboxSpec, listener: int, open_files: int, workdir: str) -> list[str]:
    """Return the agent's command line, which bubblewrap executes as the sandbox's user; `workdir` is the image's."""
    own = replace(spec, user=None)
    flags = agent_flags(own, listen_fd=listener, open_files=open_files, image_workdir=workdir)
    return [_layout.AGENT, *flags]
