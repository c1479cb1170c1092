"""Images of strangers on local: no link or variable of theirs reaches the host, or replaces a program of ours."""

import os
import re
from pathlib import Path

import pytest

from sandboxkit import SandboxError, Session, Volume
from tests.components import needs_local_gvisor, needs_root
from tests.local.conftest import state  # noqa: F401  # a fixture
from tests.local.test_image import docker_save, layer  # noqa: F401  # a fixture
from tests.local.test_host_uid import as_ordinary_user
from tests.strangers.local_images import CONFINED, GVISOR, HONEST, HOSTILE, Host, StrangersImage

pytestmark = pytest.mark.anyio
CASES = (*HOSTILE, *CONFINED, *HONEST)
needs_gvisor = needs_local_gvisor()
AS_USER = f"""
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.strangers.local_images import CONFINED, GVISOR, HONEST, HOSTILE, Host
def check():
    folder = Path(os.environ["SANDBOXKIT_STATE_DIR"], "host")
    folder.mkdir()
    host = Host(folder)
    return [host.problem(case) for case in (*HOSTILE, *CONFINED, *HONEST) if case.spec != GVISOR]
print([each for each in await anyio.to_thread.run_sync(check) if each])
"""


@pytest.fixture
def host(tmp_path: Path, state: Path) -> Host:  # noqa: F811
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=needs_gvisor if case.spec == GVISOR else ())
        for case in CASES
    ],
)
def test_links_of_an_image_lead_nowhere_but_into_the_image(
    host: Host, case: StrangersImage
) -> None:
    assert host.problem(case) == ""


@needs_root("root starts a program as another user")
async def test_links_of_an_image_lead_an_ordinary_user_nowhere_else(
    tmp_path: Path,
    state: Path,  # noqa: F811
) -> None:
    assert await as_ordinary_user(AS_USER, state) == "[]\n"


def test_a_volume_cannot_lead_the_mount_of_another_one_to_the_host(host: Host, state: Path) -> None:  # noqa: F811
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


async def test_a_link_that_a_program_left_in_a_snapshot_leads_nowhere(
    host: Host,
    layer: bytes,  # noqa: F811
    tmp_path: Path,
) -> None:
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
def test_no_variable_of_an_image_adds_an_option(
    tmp_path: Path,
    layer: bytes,  # noqa: F811
    state: Path,  # noqa: F811
    variable: str,
) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer], env=[variable]))
    with Session("local", image=image) as session, pytest.raises(SandboxError, match="NUL"):
        session.run(["sh", "-c", "exit"]).result(60)


def test_what_looks_like_an_option_stays_a_variable(
    tmp_path: Path,
    layer: bytes,  # noqa: F811
    state: Path,  # noqa: F811
) -> None:
    env = ["A=--share-net", "--dev-bind=/ /host", "B=--", "C=\n--tmpfs\n/etc", "D=--tmpfs"]
    image = str(docker_save(tmp_path / "image.tar", [layer], env=env))
    with Session("local", image=image) as session:
        done = session.run(["sh", "-c", 'echo "$A$B$C$D"; ls /host; cat /etc/kept']).result(60)
        assert done.stdout == "--share-net--\n--tmpfs\n/etc--tmpfs\nkept\n"
        assert "/host" in done.stderr
