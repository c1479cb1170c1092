"""Images of strangers on local: no link or variable of theirs reaches the host, or replaces a program of ours."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Dataset, SandboxError, Session, Volume
from sandboxkit.errors import SandboxStartError
from tests.components import needs_local_gvisor, needs_root
from tests.data_here import beside
from tests.local import conftest, test_image
from tests.local.test_host_uid import as_ordinary_user
from tests.local.test_image import docker_save

pytestmark = pytest.mark.anyio
state, layer = conftest.state, test_image.layer  # fixtures
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
_GIVEN = beside(__file__, "local_images.toml")
HOSTILE, CONFINED, HONEST = (
    [StrangersImage(name, **given) for name, given in _GIVEN[kind].items()]
    for kind in ("hostile", "confined", "honest")
)
"""Images that no sandbox starts with, images whose sandbox has a folder of its own in the place of the
host's, and images that start."""


def root_folder(folder: Path) -> Path:
    """Make a root folder with a shell and a few programs, and the usual links."""
    for name in ("usr/bin", "usr/lib/data", "etc", "home", "var/tmp", "run", "mnt/here/data"):
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


CASES = (*HOSTILE, *CONFINED, *HONEST)
needs_gvisor = needs_local_gvisor()


@pytest.fixture
def host(tmp_path: Path, state: Path) -> Host:
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=needs_gvisor if case.spec == GVISOR else ())
        for case in CASES
    ],
)
def test_links_of_an_image_lead_only_into_the_image(host: Host, case: StrangersImage) -> None:
    assert host.problem(case) == ""


@needs_root("root starts a program as another user")
async def test_links_of_an_image_lead_a_user_nowhere_else(tmp_path: Path, state: Path) -> None:
    program = _GIVEN["as_user"].replace("ROOT", repr(str(Path(__file__).parents[2])))
    assert await as_ordinary_user(program, state) == "[]\n"


def test_a_volume_cannot_lead_the_mount_of_another_one_to_the_host(host: Host, state: Path) -> None:
    image = host.image(StrangersImage("", {"/a": f"/oldroot{state}/volumes"}))
    os.mkdir(f"{image}/b")
    mounts = {"/a": Volume("first"), "/b": Volume("second")}
    with Session("local", mounts=mounts) as session:
        box = session.sandbox()
        seen = box.exec(["cat", "/proc/self/mountinfo"]).result(60).stdout
        named = re.search(r"/(second\.[0-9a-f]+) /b ", seen)
        assert named is not None
        box.exec(["ln", "-sfn", "/oldroot", f"/a/{named[1]}"]).result(60)
    with Session("local", image=image, mounts=mounts) as session:
        read = f"cat /b{host.secret}; echo x >/b{host.open}/made; echo done"
        done = session.run(["sh", "-c", read]).result(60)
        assert (done.stdout, os.listdir(host.open)) == ("done\n", ["secret"])


async def test_a_link_in_a_snapshot_leads_nowhere(host: Host, layer: bytes, tmp_path: Path) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer]))
    mounts = {"/data": host.dataset}
    async with Session("local", image=image) as session:
        async with session.sandbox() as box:
            made = await box.exec(["sh", "-c", f"ln -s /oldroot{host.open} /data && cd /data"])
            assert "can't cd" in made.stderr
            snapshot = await box.snapshot()
        async with session.sandbox(snapshot=snapshot, mounts=mounts) as later:
            done = await later.exec(
                ["sh", "-c", f"cat /data/file; ls /data; ls -d /oldroot{host.open}"]
            )
            assert done.stdout == f"datafile\n/oldroot{host.open}\n"
        await snapshot.delete()
    assert os.listdir(host.open) == ["secret"]


@pytest.mark.parametrize("variable", ["A=x\0--share-net", "A\0--bind\0/\0/x=y", "A=\0"])
def test_no_variable_is_an_option(tmp_path: Path, layer: bytes, state: Path, variable: str) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer], env=[variable]))
    with Session("local", image=image) as session, pytest.raises(SandboxError, match="NUL"):
        session.run(["sh", "-c", "exit"]).result(60)


def test_what_looks_like_an_option_is_a_variable(tmp_path: Path, layer: bytes, state: Path) -> None:
    env = ["A=--share-net", "--dev-bind=/ /host", "B=--", "C=\n--tmpfs\n/etc", "D=--tmpfs"]
    image = str(docker_save(tmp_path / "image.tar", [layer], env=env))
    with Session("local", image=image) as session:
        done = session.run(["sh", "-c", 'echo "$A$B$C$D"; ls /host; cat /etc/kept']).result(60)
        assert done.stdout == "--share-net--\n--tmpfs\n/etc--tmpfs\nkept\n"
        assert "/host" in done.stderr
