"""No image gives its programs more than a sandbox has, on docker: standard, strict and with gVisor."""

import json
import os
import re
import secrets
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Dataset, Interpreter, Sandbox, Session
from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    SandboxStartError,
    SnapshotNotFoundError,
)
from sandboxkit.providers.docker import DockerProvider, _snapshots
from sandboxkit.types import SandboxSpec, SnapshotInfo
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker, require_gvisor
from tests.faults import FaultProxy
from tests.strangers.layouts import member, tar, tar_of

_GIVEN = beside(__file__, "docker_images.toml")
HOME = "/home/app"
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
EVIL: str = _GIVEN["evil"]
TURN: str = _GIVEN["turn"]
PYTHON = "/usr/bin/python3"
# Notes the same, and is Python.
EVIL_PYTHON = EVIL.replace('/bin/dash "$@"', f'{PYTHON}.11 "$@"')


@dataclass(frozen=True)
class Image:
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    user: str = "app"


# Any: the fields of an image.
def _image(files: Mapping[str, str] = {}, evil: tuple[str, ...] = (), **given: Any) -> Image:
    return Image(files={**dict.fromkeys(evil, EVIL), **files}, **given)


HOSTILE = {name: _image(**given) for name, given in _GIVEN["hostile"].items()}
"""Images whose programs may run as their user, 1000, without capabilities, or not at all."""
HONEST = {name: _image(**given) for name, given in _GIVEN["honest"].items()}
"""Images that start, in standard and strict sandboxes."""

_ROOTS = PASSWD + "".join(
    f"{name}:x:0:0::/:/bin/sh\n" for name in ("toor", "1000x", "dup", "65534", "4294967296")
)
_ROOTS += "dup:x:1000:1000::/:/bin/sh\n"
ROOT_BY_ANOTHER_NAME = {
    user: Image(files={"/etc/passwd": _ROOTS}, user=user) for user in _GIVEN["root_by_another_name"]
}

PATIENCE = 60.0
# Any: options of a sandbox.
MODES: dict[str, dict[str, Any]] = {"standard": {}, "strict": {"profile": "strict"}}
MODES["gvisor"] = {"isolation": "gvisor"}
REPLACED = ("root", "root:app", "0", "0:0", "00", "000:1000", "65534")
"""Users that are a random uid instead, and the uid that has the name of an account."""
Built = Callable[[Image], str]


def build(tag: str, image: Image) -> None:
    """Build an image on the daemon. No program of it runs for that.

    Its label keeps its layers apart from other builds': who removes an image removes the layers below it.
    """
    files = {"/etc/passwd": PASSWD, f"{HOME}/agent": EVIL, f"{HOME}/.keep": "", **image.files}
    owner: dict[str, Any] = {"uid": 1000, "gid": 1000}
    members: list[Any] = [member(HOME[1:], tarfile.DIRTYPE, **owner)]
    for path, target in image.links.items():
        members.append(member(path.strip("/"), tarfile.SYMTYPE, target, **owner))
    for path, text in files.items():
        if path not in image.links:
            members.append((member(path.strip("/"), **owner), text.encode()))
    recipe = f"FROM {TEST_IMAGE}\nLABEL of={tag}\nUSER root\nADD layer.tar /\n{image.config}\n"
    recipe += f"USER {image.user}\n"
    context = tar_of({"layer.tar": tar(members), "Dockerfile": recipe.encode()})
    command = ["docker", "build", "-q", "-t", tag, "-"]
    made = subprocess.run(command, input=context, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Build each image once; remove them all in the end."""
    require_docker()
    tags: dict[str, str] = {}

    def of(image: Image) -> str:
        if str(image) not in tags:
            tags[str(image)] = f"sandboxkit/stranger-{secrets.token_hex(6)}:test"
            build(tags[str(image)], image)
        return tags[str(image)]

    yield of
    for tag in tags.values():
        docker("rmi", "-f", tag)


@pytest.fixture(scope="module")
def far() -> Iterator[str]:
    """The daemon as one on another machine, whose sandboxes are reached by `docker exec` alone."""
    with FaultProxy("unix:///var/run/docker.sock", listen="tcp") as bridge:
        yield bridge.url


@pytest.fixture
async def provider(built: Built, anyio_backend: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


def docker(*argv: str) -> str:
    return subprocess.run(["docker", *argv], check=True, capture_output=True, text=True).stdout


def session(url: str | None, image: str, mode: str) -> Session:
    if mode == "gvisor":
        require_gvisor()
    return Session(DockerProvider(base_url=url), image=image, start_timeout=PATIENCE, **MODES[mode])


def shown(sandbox: Sandbox, *argv: str, check: bool = True) -> str:
    return sandbox.exec(argv, check=check).result(PATIENCE).stdout


@contextmanager
def kept(owner: Session, sandbox: Sandbox) -> Iterator[Sandbox]:
    snapshot = sandbox.snapshot(ttl=300).result(PATIENCE)
    try:
        with owner.sandbox(snapshot=snapshot) as other:
            yield other
    finally:
        snapshot.delete().result(PATIENCE)


@contextmanager
def volume() -> Iterator[str]:
    name = f"stranger-{secrets.token_hex(6)}"
    try:
        yield f"volume:{name}"
    finally:
        docker("volume", "rm", "-f", f"sandboxkit-volume-{name}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOSTILE)
def test_its_programs_have_no_rights_or_fail(built: Built, far: str, name: str, mode: str) -> None:
    with (
        session(far, built(HOSTILE[name]), mode) as owner,
        Session(DockerProvider(base_url=far)) as other,
    ):
        sandbox = owner.sandbox()
        try:
            assert shown(sandbox, "/usr/bin/id", "-u", check=False) == "1000\n"
        except (SandboxStartError, ConfigurationError, CommandStartError):
            return
        shown(sandbox, "/bin/dash", "-c", TURN)
        again = other.from_id(str(sandbox.id)).result(PATIENCE)
        assert shown(again, "/bin/echo", "works") == "works\n"
        noted = shown(sandbox, "/bin/cat", "/dev/shm/proof", check=False).splitlines()
        if mode == "strict":
            # A folder may be not in memory; the sandbox of the snapshot may not start.
            with suppress(ConfigurationError, SandboxStartError), kept(owner, sandbox) as later:
                noted += shown(later, "/bin/cat", "/dev/shm/proof", check=False).splitlines()
        assert set(noted) <= {"1000 0000000000000000"}


@pytest.mark.parametrize("mode", ["strict", "gvisor"])
@pytest.mark.parametrize("user", ROOT_BY_ANOTHER_NAME)
def test_nothing_runs_as_uid_0_by_another_name(built: Built, user: str, mode: str) -> None:
    with session(None, built(ROOT_BY_ANOTHER_NAME[user]), mode) as owner:
        sandbox = owner.sandbox()
        if user in REPLACED:
            assert int(shown(sandbox, "/usr/bin/id", "-u")) > 0
        else:
            with pytest.raises(SandboxStartError, match=f'"{re.escape(user)}".*user='):
                sandbox.start().result(PATIENCE)


def test_a_command_of_a_strict_sandbox_runs_as_no_uid_0_either(built: Built) -> None:
    with session(None, built(ROOT_BY_ANOTHER_NAME["0"]), "strict") as owner:
        sandbox = owner.sandbox()
        for user in ("toor", "root", "0", "0:0", "00", ":0", "1000x:app"):
            with pytest.raises(ConfigurationError, match="nothing runs as root"):
                sandbox.exec(["id"], user=user).result(PATIENCE)
        assert sandbox.exec(["id", "-u"], user="65534").result(PATIENCE).stdout == "65534\n"


def test_an_account_that_the_sandbox_itself_wrote_is_no_root(built: Built) -> None:
    image = built(Image({"/data": "/etc"}, user="1000"))
    with (
        volume() as data,
        Session("docker", image=image, profile="strict", mounts={"/data": data}) as owner,
    ):
        sandbox = owner.sandbox()
        sandbox.write_file("/data/passwd", b"app:x:0:0::/:/bin/sh\n").result(PATIENCE)
        with pytest.raises(ConfigurationError, match="nothing runs as root"):
            sandbox.exec(["id"], user="app").result(PATIENCE)


@pytest.mark.parametrize("mode", MODES)
def test_root_can_neither_move_nor_replace_the_agent(built: Built, far: str, mode: str) -> None:
    image = Image(files={"/home/app/agent": EVIL}, user="root")
    with session(far, built(image), mode) as owner, Session(DockerProvider(base_url=far)) as other:
        sandbox = owner.sandbox()
        shown(sandbox, "/bin/dash", "-c", TURN)
        again = other.from_id(str(sandbox.id)).result(PATIENCE)
        assert shown(again, "/bin/echo", "works") == "works\n"
        assert "proof" not in shown(sandbox, "/bin/ls", "/dev/shm", check=False).split()


@pytest.mark.parametrize("mode", MODES)
def test_the_python_that_jobs_are_forked_from_is_never_root(built: Built, mode: str) -> None:
    with session(None, built(Image(files={PYTHON: EVIL_PYTHON})), mode) as owner:
        if mode == "gvisor":  # which has no ambient capabilities
            with pytest.raises(CommandStartError, match="invalid argument"):
                owner.sandbox(interpreter=Interpreter()).start().result(PATIENCE)
            return
        sandbox = owner.sandbox(interpreter=Interpreter())
        result = sandbox.run_python("import os; print(os.getuid())", check=True).result(PATIENCE)
        assert result.stdout == "1000\n"
        noted = shown(sandbox, "/bin/cat", "/dev/shm/proof")
        uids, capabilities = zip(*(line.split() for line in noted.splitlines()), strict=True)
        assert not {"0", "1000"} & set(uids)
        assert set(capabilities) == {"00000000000000c0"}  # CAP_SETUID and CAP_SETGID


def test_a_container_has_no_health_check_and_no_program_of_its_image(built: Built) -> None:
    with session(None, built(HOSTILE["a health check and an entry point"]), "standard") as owner:
        sandbox = owner.sandbox()
        sandbox.start().result(PATIENCE)
        (container,) = json.loads(docker("inspect", str(sandbox.id)))
    assert container["Config"]["Healthcheck"]["Test"] == ["NONE"]
    assert "Health" not in container["State"]
    assert container["Path"].endswith("/agent")
    assert container["Path"].startswith("/.sandboxkit-")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_image_starts(built: Built, name: str, mode: str) -> None:
    with session(None, built(HONEST[name]), mode) as owner:
        sandbox = owner.sandbox()
        sandbox.write_file("/tmp/file", b"x").result(PATIENCE)
        found = shown(sandbox, "sh", "-c", "id -u; cat /tmp/file; pwd; test -w ~ || echo ~")
        uid = HONEST[name].user.partition(":")[0].replace("app", "1000")
        home = "/srv/own\n" if name == "a home" else ""  # any other can be written
        work = "/srv/own" if name == "a folder to work in" and mode != "strict" else "/workspace"
        assert found in (f"{uid}\nx{work}\n{home}", f"{uid}\nx/srv\n")


@pytest.mark.parametrize("name", ["/tmp is a link", "a relative link at /tmp"])
def test_folders_behind_links_are_kept_in_a_strict_snapshot(built: Built, name: str) -> None:
    with session(None, built(HONEST[name]), "strict") as owner:
        sandbox = owner.sandbox()
        make = "mkdir -p a/b && echo deep >a/b/file && ln a/b/file /workspace/same && chmod 0 a && echo x >/tmp/x"
        shown(sandbox, "sh", "-c", make)
        with kept(owner, sandbox) as later:
            show = "stat -c %a a; chmod 700 a; cat a/b/file same /tmp/x"
            assert shown(later, "sh", "-c", show) == "0\ndeep\ndeep\nx\n"


def test_a_strict_snapshot_has_no_files_that_only_root_may_read(built: Built) -> None:
    with session(None, built(HOSTILE["the workdir is a link into /tmp"]), "strict") as owner:
        sandbox = owner.sandbox()
        link = "rmdir /tmp/w; ln -s /etc /tmp/w; ln -s /etc /tmp/e"
        shown(sandbox, "sh", "-c", link, check=False)
        # It cannot be taken, or started from, where the daemon mounts /workspace first, and /tmp hides it.
        with suppress(ConfigurationError, SandboxStartError), kept(owner, sandbox) as later:
            look = "find /tmp /workspace/ -follow -name shadow -readable | wc -l"
            assert shown(later, "sh", "-c", look).strip() == "0"


@pytest.fixture(scope="module")
def labelled(built: Built) -> str:
    """An image with labels that say whatever our own say, and name a private image as what it was made of."""
    private = docker("inspect", "-f", "{{.Id}}", built(Image(files={"/secret": "private"}))).strip()
    about = _GIVEN["about"] | {"base": private, "image": private, "parent": None}
    given = _GIVEN["labels"] | {
        "sandboxkit.origin": json.dumps(about | {"reference": private}),
        "sandboxkit.snapshot": json.dumps(about),
    }
    labels = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
    return built(Image(config=f"LABEL {labels}"))


@pytest.mark.anyio
async def test_labels_of_an_image_lend_nothing(provider: DockerProvider, labelled: str) -> None:
    box = await provider.create(SandboxSpec(image=labelled, tags={"test": "labels"}))
    try:
        info = await box.info()
        assert (info.tags, info.image, info.expires_at) == ({"test": "labels"}, labelled, None)
        assert [each.id async for each in provider.list({"forged": "yes"})] == []
        assert info in [each async for each in provider.list({"test": "labels"})]
    finally:
        await box.delete()


@pytest.mark.parametrize("mode", ["standard", "strict"])
def test_a_label_does_not_choose_what_a_snapshot_is_made_of(labelled: str, mode: str) -> None:
    with session(None, labelled, mode) as owner:
        sandbox = owner.sandbox()
        sandbox.write_file("/workspace/file", b"kept").result(PATIENCE)
        with kept(owner, sandbox) as later:
            look = "id -u; cat /workspace/file; ls /secret"
            assert shown(later, "sh", "-c", look, check=False) == "1000\nkept"


@pytest.mark.anyio
async def test_a_labelled_image_is_no_snapshot(provider: DockerProvider, labelled: str) -> None:
    tag = secrets.token_hex(8)
    docker("tag", labelled, f"sandboxkit-snapshot:{tag}")
    try:
        found: list[SnapshotInfo] = [each async for each in provider.list_snapshots({})]
        assert f"snapshot-{tag}" not in [each.id for each in found]
        with pytest.raises(SnapshotNotFoundError):
            await provider.create(SandboxSpec(snapshot=f"snapshot-{tag}", profile="strict"))
        await provider.delete_snapshot(f"snapshot-{tag}")
        assert docker("images", "-q", f"sandboxkit-snapshot:{tag}")
    finally:
        docker("rmi", f"sandboxkit-snapshot:{tag}")


@pytest.mark.anyio
async def test_a_container_with_a_label_of_its_image_is_not_swept(
    provider: DockerProvider, labelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_snapshots, "_STALE", -10.0)
    container = docker("create", labelled, "true").strip()
    try:
        assert [each async for each in provider.list_snapshots({"no": "snapshot"})] == []
        assert docker("ps", "-aq", "--no-trunc", "--filter", f"id={container}").strip() == container
    finally:
        docker("rm", container)


HIDING = Image(
    {"/dataset": "/hidden/x", "/volume": "/hidden/x"}, {"/hidden/x/y": ""}, "VOLUME /hidden"
)


def test_a_dataset_that_a_stranger_used_first_is_whole(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))  # where the dataset is kept
    before = set(docker("volume", "ls", "-q").split())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text(f"of this test {secrets.token_hex(8)}")
    dataset = Dataset(tmp_path / "data")
    for tag in (built(HIDING), os.environ["SANDBOXKIT_DOCKER_IMAGE"]):
        with Session("docker", image=tag, mounts={"/data": dataset}) as owner:
            found = owner.run(["cat", "/data/file"], check=True).result(PATIENCE).stdout
            assert found == (tmp_path / "data" / "file").read_text()
    (kept,) = os.listdir(tmp_path / "state" / "datasets")
    for name in set(docker("volume", "ls", "-q").split()) - before:
        if kept in name:
            docker("volume", "rm", name)


def test_a_volume_that_a_stranger_used_first_can_be_written(built: Built) -> None:
    with volume() as data, Session("docker", image=built(HIDING), mounts={"/data": data}) as owner:
        owner.run(["touch", "/data/file"], check=True).result(PATIENCE)


@pytest.mark.parametrize(
    "name", ["/dev is a volume with a link to the agent's memory", "/proc is a volume"]
)
def test_a_volume_in_place_of_a_kernels_folder_is_refused(built: Built, name: str) -> None:
    refused = pytest.raises(SandboxStartError, match=f"{name.split()[0]}.*use an image without")
    with session(None, built(HOSTILE[name]), "gvisor") as owner, refused:
        owner.sandbox().start().result(PATIENCE)
