"""Root folders of strangers, whose links would lead bubblewrap's mounts to the host, and honest ones like them."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import Dataset, Session
from sandboxkit.errors import SandboxStartError

PROGRAMS = ("sh", "cat", "ls", "ln", "mkdir", "rm", "mv")
CANARY = "canary-of-the-host"
LOOKED = ("/workspace", "/tmp", "/etc", "/home", "/srv", "/var", "/proc", "/dev", "/data")
OPEN = "{open}"
"""In a link's target, stands for a folder of the host that everybody may write to."""


@dataclass(frozen=True)
class StrangersImage:
    """An image with links and empty files (with "|" before them, pipes), and the options of its sandbox."""

    name: str
    links: dict[str, str]
    files: tuple[str, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)


def _mounted(at: str) -> dict[str, Any]:
    return {"mounts": {at: None}}


STRICT = {"profile": "strict"}
GVISOR = {"isolation": "gvisor"}
HOSTILE = (
    StrangersImage("the agent's folder is a link to the host", {"/.sandboxkit": f"/oldroot{OPEN}"}),
    StrangersImage("the agent's folder is a link in the image", {"/.sandboxkit": "home"}),
    StrangersImage("the agent is a link to a program", {"/.sandboxkit/agent": "../usr/bin/sh"}),
    StrangersImage("the agent is a dangling link", {"/.sandboxkit/agent": f"/oldroot{OPEN}/made"}),
    StrangersImage("the agent's folder is a file", {}, ("/.sandboxkit",)),
    StrangersImage("gVisor's folder is a link", {"/.sandboxkit-root": "home"}, spec=GVISOR),
    StrangersImage(
        "gVisor's folder is a link to the host",
        {"/.sandboxkit-root": f"/oldroot{OPEN}"},
        spec=GVISOR,
    ),
    StrangersImage(
        "gVisor's /tmp is a link to its state", {"/tmp": "/.sandboxkit-root"}, spec=GVISOR
    ),
    StrangersImage("gVisor's agent is a link", {"/.sandboxkit/agent": "/usr/bin/sh"}, spec=GVISOR),
    StrangersImage("/proc is a link", {"/proc": "home"}),
    StrangersImage("/dev is a link to the host", {"/dev": f"/oldroot{OPEN}"}),
    StrangersImage("a strict /tmp leads to a process", {"/tmp": "/proc/self/root"}, spec=STRICT),
    StrangersImage("a strict /tmp is the root", {"/tmp": "/"}, spec=STRICT),
    StrangersImage("a strict /tmp is a device folder", {"/tmp": "/dev/shm"}, spec=STRICT),
    StrangersImage("/workspace leads to a process", {"/workspace": "proc/1/root/x"}),
    StrangersImage("a mount leads to the agent", {"/data": "/.sandboxkit"}, spec=_mounted("/data")),
    StrangersImage("a mount leads to /proc", {"/data": "/proc/1/cwd"}, spec=_mounted("/data")),
    StrangersImage("a mount leads to /dev", {"/data": "dev/fd"}, spec=_mounted("/data")),
    StrangersImage("a mount leads to itself", {"/data": "data"}, spec=_mounted("/data")),
    StrangersImage("links lead round", {"/a": "b", "/b": "a"}, spec=_mounted("/a/c")),
    StrangersImage("a mount leads to the root", {"/data": "home/.."}, spec=_mounted("/data")),
    StrangersImage("a mount is a file", {}, ("/data",), spec=_mounted("/data")),
    StrangersImage("a mount is below a file", {}, ("/data",), spec=_mounted("/data/below")),
    StrangersImage("a mount is a pipe", {}, ("|/data",), spec=_mounted("/data")),
    StrangersImage("two mounts are one", {"/a": "b"}, spec={"mounts": {"/a": None, "/b": None}}),
    StrangersImage(
        "one mount leads into another", {"/a": "b/x"}, spec={"mounts": {"/b": None, "/a": None}}
    ),
    StrangersImage(
        "a mount leads to the new root", {"/data": f"/newroot/..{OPEN}"}, spec=_mounted("/data")
    ),
)
"""Images that no sandbox starts with."""

CONFINED = (
    StrangersImage("/workspace leads to the host", {"/workspace": f"/oldroot{OPEN}/made"}),
    StrangersImage("/workspace climbs to the host", {"/workspace": f"../../oldroot{OPEN}/made"}),
    StrangersImage(
        "/workspace leads on and on", {"/workspace": "a", "/a": "b/c", "/b": f"../oldroot{OPEN}"}
    ),
    StrangersImage("/etc leads to the host", {"/etc": f"/oldroot{OPEN}"}),
    StrangersImage("/var leads to the host", {"/var": f"/oldroot{OPEN}"}),
    StrangersImage("/home leads to the host", {"/home": f"/oldroot{OPEN}"}),
    StrangersImage("a strict /tmp leads to the host", {"/tmp": f"/oldroot{OPEN}"}, spec=STRICT),
    StrangersImage(
        "a strict /workspace leads there", {"/workspace": f"/oldroot{OPEN}/made"}, spec=STRICT
    ),
    StrangersImage(
        "a strict workdir leads to the host",
        {"/srv": f"/oldroot{OPEN}"},
        spec={**STRICT, "workdir": "/srv/work"},
    ),
    StrangersImage(
        "a mount leads to the host", {"/data": f"/oldroot{OPEN}/made"}, spec=_mounted("/data")
    ),
    StrangersImage(
        "a mount climbs to the host", {"/a": "../../../oldroot"}, spec=_mounted(f"/a{OPEN}/made")
    ),
    StrangersImage(
        "gVisor's /workspace leads there", {"/workspace": f"/oldroot{OPEN}/made"}, spec=GVISOR
    ),
)
"""Images whose sandbox has a folder of its own in the place of the host's."""

HONEST = (
    StrangersImage("/bin and /lib are links", {}),
    StrangersImage("/tmp is a link", {"/tmp": "var/tmp"}),
    StrangersImage("a strict /tmp is a link", {"/tmp": "/var/tmp"}, spec=STRICT),
    StrangersImage("/var/run is a link", {"/var/run": "/run"}, spec=_mounted("/var/run/data")),
    StrangersImage("/dev/shm is a link", {"/dev/shm": "/run/shm"}, spec=STRICT),
    StrangersImage("/workspace is a link", {"/workspace": "home/me"}),
    StrangersImage("a mount below a link", {}, spec=_mounted("/lib/data")),
    StrangersImage(
        "a mount whose link dangles", {"/data": "/mnt/here/data"}, spec=_mounted("/data")
    ),
    StrangersImage(
        "a mount in a strict /tmp", {"/tmp": "var/tmp"}, spec={**STRICT, **_mounted("/tmp/data")}
    ),
    StrangersImage("an agent's folder of ours", {}, ("/.sandboxkit/agent",)),
)


def root_folder(folder: Path) -> Path:
    """Make a root folder with a shell and a few programs, and the usual links."""
    for name in (
        "usr/bin",
        "usr/lib",
        "etc",
        "home",
        "var/tmp",
        "run",
        "usr/lib/data",
        "mnt/here/data",
    ):
        (folder / name).mkdir(parents=True)
    for name, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib")):
        (folder / name).symlink_to(target)
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path is not None
        shutil.copy(os.path.realpath(path), folder / "usr/bin" / program)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+)", listed):
            shutil.copy(os.path.realpath(library), folder / "usr/lib" / os.path.basename(library))
    return folder


class Host:
    """A folder with an honest image, a file that no sandbox may read, and a folder in which none may make one."""

    def __init__(self, folder: Path) -> None:
        self.open, self.secret = folder / "open", folder / "open" / "secret"
        self.open.mkdir()
        self.open.chmod(0o777)
        self.secret.write_text(CANARY)
        self.secret.chmod(0o644 if os.geteuid() == 0 else 0o600)
        (folder / "data").mkdir()
        (folder / "data" / "file").write_text("data")
        self.dataset = Dataset(folder / "data")
        self._honest = root_folder(folder / "honest")
        self._folder = folder
        folder.chmod(0o755)

    def problem(self, case: StrangersImage) -> str:
        """Start a sandbox with the image of a case; return what is wrong with the outcome, or ""."""
        said = self.outcome(case)
        if (
            CANARY in said
            or os.listdir(self.open) != ["secret"]
            or self.secret.read_text() != CANARY
        ):
            return f"{case.name}: reached the host: {said!r}, {os.listdir(self.open)}"
        expected = "data" * len(case.spec.get("mounts", ())) + "0"
        if said.startswith("refused: image=") if case in HOSTILE else said == expected:
            return ""
        return f"{case.name}: {said!r}"

    def image(self, case: StrangersImage) -> str:
        """Make the image of a case, and return its folder."""
        root = self._folder / f"image-{len(os.listdir(self._folder))}"
        shutil.copytree(self._honest, root, symlinks=True, copy_function=os.link)
        for path in case.files:
            where = root / path.lstrip("|/")
            where.parent.mkdir(exist_ok=True)
            (os.mkfifo if path.startswith("|") else Path.touch)(where)
        for path, target in case.links.items():
            where = root / path.lstrip("/")
            where.parent.mkdir(parents=True, exist_ok=True)
            if where.is_dir() and not where.is_symlink():
                shutil.rmtree(where)
            where.symlink_to(target.replace(OPEN, str(self.open)))
        return str(root)

    def outcome(self, case: StrangersImage) -> str:
        """Start a sandbox with the image of a case; return the error, or what its program prints."""
        spec = dict(case.spec)
        points = [point.replace(OPEN, str(self.open)) for point in spec.pop("mounts", ())]
        if points:
            spec["mounts"] = dict.fromkeys(points, self.dataset)
        looked = (*points, *LOOKED, str(self.open), f"/oldroot{self.open}")
        reads = "".join(f"cat {folder}/secret 2>/dev/null; " for folder in looked)
        works = " && ".join((*(f"cat {point}/file" for point in points), "echo >/workspace/file"))
        try:
            with Session("local", image=self.image(case), **spec) as session:
                done = session.run(["sh", "-c", f"{reads}{works}"]).result(60)
                return f"{done.stdout}{done.stderr}{done.returncode}"
        except SandboxStartError as error:
            return f"refused: {error}"
