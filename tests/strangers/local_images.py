"""Root folders of strangers, whose links would lead bubblewrap's mounts to the host, and honest ones like them."""

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import Dataset, Session
from sandboxkit.errors import SandboxStartError

PROGRAMS = ("sh", "cat", "ls", "ln", "mkdir", "rm", "mv")
CANARY = "canary-of-the-host"
LOOKED = ("/workspace", "/tmp", "/etc", "/home", "/srv", "/var", "/proc", "/dev", "/data")
OPEN = "OPEN"
"""In a link's target, stands for a folder of the host that everybody may write to."""


@dataclass(frozen=True)
class StrangersImage:
    """An image with links and empty files (with "|" before them, pipes), and the options of its sandbox."""

    name: str
    links: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    # Any: a sandbox's options.
    spec: dict[str, Any] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()


GVISOR = {"isolation": "gvisor"}
# Any: what TOML is.
_GIVEN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("local_images.toml").read_text())
HOSTILE, CONFINED, HONEST = (
    [StrangersImage(name, **given) for name, given in _GIVEN[kind].items()]
    for kind in ("hostile", "confined", "honest")
)
"""Images that no sandbox starts with, images whose sandbox has a folder of its own in the place of the
host's, and images that start."""


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
        expected = "data" * len(case.mounts) + "0"
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
        points = [point.replace(OPEN, str(self.open)) for point in case.mounts]
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
