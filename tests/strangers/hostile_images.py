"""Images of strangers for the docker provider, as data: what each holds beside the test image."""

import io
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.docker_here import TEST_IMAGE

__all__ = [
    "EVIL",
    "EVIL_PYTHON",
    "HONEST",
    "HOSTILE",
    "PYTHON",
    "ROOT_BY_ANOTHER_NAME",
    "TURN",
    "Image",
    "build",
]

HOME = "/home/app"
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
# It notes as whom it runs, in the sandbox and in a container beside it, and then does what it is asked.
EVIL = """#!/bin/dash
umask 0
for place in /dev/shm /proc/1/root/dev/shm; do
    echo "$(/usr/bin/id -u) $(/bin/grep CapEff /proc/self/status | /usr/bin/cut -f2)" >>$place/proof
done 2>/dev/null
exec /bin/dash "$@"
"""
PYTHON = "/usr/bin/python3"
# Notes the same, and is Python.
EVIL_PYTHON = EVIL.replace('/bin/dash "$@"', f'{PYTHON}.11 "$@"')
TURN = f"""
mkdir -p {HOME}/b && cp {HOME}/agent {HOME}/b/agent && ln -sfn {HOME}/b {HOME}/link
mkdir -p /tmp/x /tmp/w && cp {HOME}/agent /tmp/x/agent
for own in /.sandboxkit*; do
    mv $own /tmp/moved || mv $own /gone || rmdir $own || rm -rf $own
    ln -sfn {HOME}/b $own; cp {HOME}/agent $own/agent; mkdir -p $own && cp {HOME}/agent $own/agent
done
exit 0
"""
"""A program of the image that puts its own program where the agent is looked for, if it can."""


@dataclass(frozen=True)
class Image:
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    user: str = "app"


def _evil(*paths: str) -> dict[str, str]:
    return dict.fromkeys(paths, EVIL)


HOSTILE = {
    "the agent's folder is a link to the home": Image(
        {"/.sandboxkit": f"{HOME}/link", f"{HOME}/link": "/a"}
    ),
    "the agent's folder is a link to /tmp": Image({"/.sandboxkit": "/tmp/x"}),
    "the agent's folder is a link to the root": Image({"/.sandboxkit": "/"}, _evil("/agent")),
    "the agent's folder is a link to /dev": Image({"/.sandboxkit": "/dev/shm/x"}),
    "the agent's folder is a link through /proc": Image({"/.sandboxkit": f"/proc/self/root{HOME}"}),
    "the agent's folder dangles": Image({"/.sandboxkit": "/no/such/folder"}),
    "the agent's folder is a file": Image(files=_evil("/.sandboxkit")),
    "the agent's folder has an agent": Image(files=_evil("/.sandboxkit/agent")),
    "the agent's folder is a volume": Image(
        files=_evil("/.sandboxkit/agent"), config="VOLUME /.sandboxkit"
    ),
    "gVisor's folder is a link to the home": Image({"/.sandboxkit-root": HOME}),
    "gVisor's folder is a link to /tmp": Image({"/.sandboxkit-root": "/tmp/x"}),
    "gVisor's folder is a file": Image(files=_evil("/.sandboxkit-root")),
    "gVisor's folder is a volume": Image(config="VOLUME /.sandboxkit-root"),
    "gVisor's socket is a volume": Image(config="VOLUME /.sandboxkit-root/agent"),
    "the folders of loaders and keepers are links": Image(
        {"/volume": "/tmp", "/dataset": "/tmp", "/.sandboxkit-files.tar": "/etc/passwd"}
    ),
    "/tmp is a link to /etc": Image({"/tmp": "/etc"}),
    "/tmp is a link to /dev": Image({"/tmp": "/dev"}),
    "/tmp is a link to the root": Image({"/tmp": "/"}),
    "/tmp is a link to /sys": Image({"/tmp": "/sys"}),
    "the workdir is a link to /proc": Image({"/workspace": "/proc"}),
    "the workdir is a link through /proc": Image({"/workspace": "/proc/1/root/etc"}),
    "the workdir is a link into /tmp": Image({"/workspace": "/tmp/w"}),
    "the workdir is a link to gVisor's folder": Image({"/workspace": "/.sandboxkit-root"}),
    "/dev is a volume with a link to the agent's memory": Image(
        {"/dev/null": "/proc/self/mem"}, config="VOLUME /dev"
    ),
    "/dev is a volume with a file for /dev/null": Image(
        files={"/dev/null": ""}, config="VOLUME /dev"
    ),
    "/proc is a volume": Image(config="VOLUME /proc"),
    "the agent's own /proc is a volume": Image(config="VOLUME /proc/1"),
    "/etc/hosts is a link": Image({"/etc/hosts": f"{HOME}/agent"}),
    "every program is another": Image(
        files=_evil(
            "/bin/sh", "/bin/tar", "/usr/bin/find", "/usr/bin/gzip", "/usr/local/bin/connect"
        )
    ),
    "a health check and an entry point": Image(
        config=f'HEALTHCHECK --interval=1s CMD ["{HOME}/agent"]\nENTRYPOINT ["{HOME}/agent"]\nCMD ["{HOME}/agent"]'
    ),
    "an environment for loaders and for Go": Image(
        config=f"ENV LD_PRELOAD={HOME}/agent BASH_ENV={HOME}/agent ENV={HOME}/agent PATH={HOME}:/usr/bin:/bin "
        "GODEBUG=gctrace=1,inittrace=1,sbrk=1 GOMEMLIMIT=1 GOTRACEBACK=crash GOGC=1 HOME=/proc/1/root"
    ),
    "another root in /etc/passwd": Image(
        files={"/etc/passwd": "0:x:1000:1000::/:/bin/sh\nroot:x:1000:1000::/:/bin/sh\n" + PASSWD}
    ),
    "what is built from it, and how it is stopped": Image(
        config="ONBUILD RUN /bin/sh\nSTOPSIGNAL SIGSTOP"
    ),
}
"""Images whose programs may run as their user, 1000, without capabilities, or not at all."""

_ROOTS = PASSWD + "".join(
    f"{name}:x:0:0::/:/bin/sh\n" for name in ("toor", "1000x", "dup", "65534", "4294967296")
)
_ROOTS += "dup:x:1000:1000::/:/bin/sh\n"
ROOT_BY_ANOTHER_NAME = {
    user: Image(files={"/etc/passwd": _ROOTS}, user=user)
    for user in (
        "toor", "toor:app", "1000x", "dup", "root", "root:app", "0", "0:0", "00", "000:1000", ":0", ":", ":app",
        "+0", "-0", "0x0", "4294967296", "65534", "²", "\u0660",
    )
}  # fmt: skip
"""Images with a user that may be uid 0."""

HONEST = {
    "links at the usual places": Image(
        {"/var/run": "/run", "/lib64/x": "/lib", "/opt/bin": "/usr/bin"}
    ),
    "/tmp is a link": Image({"/tmp": "/var/tmp"}),
    "a relative link at /tmp": Image({"/tmp": "var/tmp"}),
    "a workdir that is a link": Image({"/workspace": "/srv"}),
    "a numeric user": Image(user="1000:1000"),
    "a user of the group root": Image(user="1001:0"),
    "a user without an account": Image(user="4321"),
    "a health check": Image(config="HEALTHCHECK CMD true"),
    "an entry point": Image(config='ENTRYPOINT ["/bin/false"]\nCMD ["x"]'),
    "an older folder of the agent": Image(files={"/.sandboxkit/agent": ""}),
    "labels": Image(config="LABEL maintainer=somebody sandboxkit.kept=1"),
    "variables for Go": Image(config="ENV GOMEMLIMIT=100MiB GODEBUG=netdns=go"),
}
"""Images that start, in standard and strict sandboxes."""


def build(tag: str, image: Image) -> None:
    """Build an image on the daemon. No program of it runs for that."""
    layer = io.BytesIO()
    files = {"/etc/passwd": PASSWD, f"{HOME}/agent": EVIL, f"{HOME}/.keep": "", **image.files}
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in (HOME, *image.links, *files):
            member = tarfile.TarInfo(path.strip("/"))
            member.mode, member.uid, member.gid = 0o755, 1000, 1000
            content = files.get(path, "").encode()
            if path in image.links:
                member.type, member.linkname = tarfile.SYMTYPE, image.links[path]
            elif path == HOME:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    recipe = f"FROM {TEST_IMAGE}\nUSER root\nADD layer.tar /\n{image.config}\nUSER {image.user}\n"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, data in (("layer.tar", layer.getvalue()), ("Dockerfile", recipe.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    command = ["docker", "build", "-q", "-t", tag, "-"]
    made = subprocess.run(command, input=context.getvalue(), capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
