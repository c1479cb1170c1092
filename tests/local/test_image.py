"""Root folders, image archives and images of a registry as the root of a sandbox."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from sandboxkit import Dataset, Session, errors
from sandboxkit.provider import FolderStore, owner_here
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local._layout import HOSTS
from sandboxkit.types import Profile, SandboxSpec
from tests.components import needs_root, require_program
from tests.kubernetes.registry import Registry
from tests.local.conftest import launched, make
from tests.process_list import processes

pytestmark = pytest.mark.anyio

PROGRAMS = ("sh", "cat", "id", "touch", "rm", "ls", "head", "mv", "chmod", "ln")


def tar_of(entries: Mapping[str, bytes | str | None]) -> bytes:
    """An archive of files; None is a folder, a text the target of a symbolic link, "=" and a text that of a hard one.

    One with a folder "bin" has a few programs, too."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, entry in entries.items():
            member = tarfile.TarInfo(name)
            if entry is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(entry, str):
                member.type = tarfile.LNKTYPE if entry.startswith("=") else tarfile.SYMTYPE
                member.linkname = entry.removeprefix("=")
            else:
                member.size = len(entry)
            tar.addfile(member, io.BytesIO(entry if isinstance(entry, bytes) else b""))
        for program in PROGRAMS if "bin" in entries else ():
            path = shutil.which(program)
            assert path is not None
            tar.add(os.path.realpath(path), f"bin/{program}")
            listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
            for library in re.findall(r"(/\S+)", listed):
                tar.add(os.path.realpath(library), f"usr/lib/{os.path.basename(library)}")
    return content.getvalue()


@pytest.fixture(scope="session")
def layer() -> bytes:
    """A layer with a shell, a few programs and the libraries that these need."""
    folders = dict.fromkeys(("usr", "usr/bin", "usr/lib", "etc", "var", "tmp"))
    links = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib"}
    files = {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "etc/old": b"old\n"}
    return tar_of({**folders, **links, **files, "etc/kept": b"kept\n"})


def docker_save(
    path: Path,
    layers: list[bytes],
    env: Sequence[str] = ("PATH=/usr/bin", "FROM_IMAGE=yes", "HOME=/srv/own"),
    user: str = "",
    workdir: str = "",
) -> Path:
    """Write an archive as `docker save` does."""
    ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {
        "os": "linux",
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "config": {"Env": [*env], "User": user, "WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": ids},
    }
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["t:1"], "Layers": names}]
    files = {"config.json": json.dumps(config).encode(), **dict(zip(names, layers, strict=True))}
    path.write_bytes(tar_of({**files, "manifest.json": json.dumps(manifest).encode()}))
    return path


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_dataset_is_mounted_in_an_image(tmp_path: Path, layer: bytes, profile: Profile) -> None:
    image = str(docker_save(tmp_path / "image", [layer]))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    dataset = Dataset(tmp_path / "data")
    mounts = {"/data": dataset, "/usr/share/data": dataset}
    with Session("local", image=image, mounts=mounts, profile=profile) as session:
        script = "cat /data/file /usr/share/data/file; rm -f /data/file || id -u"
        result = session.run(["sh", "-c", script]).result(60)
        assert result.stdout == "contentcontent1000\n", result.stderr


@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive", "oci"])
async def test_archive_is_the_root(
    provider: LocalProvider, tmp_path: Path, layer: bytes, kind: str
) -> None:
    second = tar_of({"etc/.wh.old": b"", "etc/new": b"new\n", "lib/through-a-link": b"x"})
    image = str(docker_save(tmp_path / "docker-archive", [layer, second]))
    if kind != "docker-archive":
        require_program("skopeo", "KUBERNETES")
        copy = ["skopeo", "--insecure-policy", "copy", "--quiet", f"docker-archive:{image}"]
        image = str(tmp_path / kind)
        subprocess.run([*copy, f"{kind}:{image}"], check=True)
    box = await make(provider, image=image, disk_mb=64)
    run = await box.sh("echo ~; cat /etc/new /etc/kept /etc/hosts; ls /usr/lib/through-a-link")
    expected = f"/srv/own\nnew\nkept\n{HOSTS.decode()}/usr/lib/through-a-link\n"
    assert run.stdout == expected, run.stderr
    assert (await box.sh("cat /etc/old")).status != 0
    assert (await box.sh("cat /etc/shadow; ls /usr/share")).stdout == ""
    # Its user may change everything, in a copy of its own.
    changed = await box.sh("rm /etc/kept && echo x > /etc/new && touch /usr/bin/y && id -u")
    assert changed.stdout == "1000\n", changed.stderr
    other = await make(provider, image=image, disk_mb=16)
    assert (await other.sh("cat /etc/kept /etc/new")).stdout == "kept\nnew\n"
    assert (await box.inner.info()).image == image
    assert "No space left" in (await other.sh("head -c 100M /dev/zero > /etc/big")).stderr


def test_commands_and_file_calls_begin_in_the_workdir_of_an_image(
    tmp_path: Path, layer: bytes
) -> None:
    second = tar_of({"srv/app/file": b"of the image", "app": "srv/app"})
    image = str(docker_save(tmp_path / "image", [layer, second], workdir="/app/"))
    with Session("local", image=image) as session, session.sandbox() as sandbox:
        assert sandbox.workdir().result(60) == "/app"
        sandbox.write_file("own", "x").result(60)
        script = "cat file /srv/app/own && touch /workspace/y"
        assert sandbox.exec(["sh", "-c", script]).result(60).stdout == "of the imagex"
        snapshot = sandbox.snapshot(ttl=300).result(60)
        with session.sandbox(snapshot=snapshot) as later:
            assert later.read_text("own").result(60) == "x"
        snapshot.delete().result(60)
        with session.sandbox(profile="strict") as other, session.sandbox(workdir="/x") as asked:
            assert other.read_text("/app/file").result(60) == "of the image"
            assert other.workdir().result(60) == "/workspace"
            assert asked.workdir().result(60) == "/x"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *(("/no/such", "/no/such"), ("/srv//x/", "/srv/x")),
        *((each, "/workspace") for each in ("", "/", "//", "..", "no/such", "/usr/../..")),
        *((each, "/workspace") for each in ("/etc/kept", "/etc/kept/x", "/proc/1/fd", "/loop")),
    ],
)
async def test_a_workdir_that_an_image_lacks_is_made_and_one_that_cannot_be_is_none(
    provider: LocalProvider, tmp_path: Path, layer: bytes, given: str, found: str
) -> None:
    image = docker_save(tmp_path / "image", [layer, tar_of({"loop": "loop"})], workdir=given)
    box = await make(provider, image=str(image))
    assert await provider.box(box.id).workdir() == found
    assert (await box.sh("touch file")).status == 0


@pytest.mark.parametrize("workdir", ["/" * 5000, "/a\0b", "/\udfff"])
async def test_a_workdir_that_is_no_path_is_refused(
    provider: LocalProvider, tmp_path: Path, layer: bytes, workdir: str
) -> None:
    image = docker_save(tmp_path / "image", [layer], workdir=workdir)
    with pytest.raises(errors.ImageNotFoundError, match="WorkingDir"):
        await make(provider, image=str(image))


@pytest.mark.parametrize("profile", ["standard", "strict"])
@pytest.mark.parametrize("passwd", [b"root:x:0:0::/root:/bin/sh", b"", None, "/tmp/none"])
async def test_the_user_has_an_account_unless_the_image_leads_them_elsewhere(
    provider: LocalProvider, tmp_path: Path, layer: bytes, passwd: bytes | str | None, profile: str
) -> None:
    gone = tar_of({"etc/.wh.passwd": b""} if passwd is None else {"etc/passwd": passwd})
    image = docker_save(tmp_path / "image", [layer, gone])
    box = await make(provider, image=str(image), profile=profile)
    lines = (await box.sh("cat /etc/passwd")).stdout.splitlines()
    own = [] if isinstance(passwd, str) else ["sandbox:x:1000:1000::/workspace:/bin/sh"]
    assert lines[-1:] == own
    assert ("root:x:0:0::/root:/bin/sh" in lines) == (passwd not in (None, b"", "/tmp/none"))


@needs_root("only root has uids to lend")
async def test_sandboxes_of_one_archive_have_different_host_uids_and_own_its_files(
    provider: LocalProvider, tmp_path: Path, layer: bytes
) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer]))
    boxes = [await make(provider, image=image) for _ in range(2)]
    pids = [launched(provider, box.id).init_pid for box in boxes]
    lines = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    assert len({re.findall(r"^Uid:.*", text, re.MULTILINE)[0] for text in lines}) == 2
    for box in boxes:
        run = await box.sh("chmod 700 /etc/kept && mv /etc/kept /etc/k && ls -ln /etc/k /etc/old")
        assert run.stdout.count(" 1000 1000 ") == 2, run.stderr


async def test_reset_sandboxes_of_archives_have_no_time_wait(
    provider: LocalProvider, tmp_path: Path, layer: bytes
) -> None:
    image = str(docker_save(tmp_path / "image.tar", [layer]))
    box = await make(provider, image=image, profile="strict", reuse="reset")
    for _ in range(2):
        await box.inner.reset()
        run = await box.sh("cat /proc/sys/net/ipv4/tcp_max_tw_buckets; cat /proc/net/dev; id -u")
        assert run.stdout.splitlines()[0] == "0", run.stderr
        assert "lo:" in run.stdout
        assert run.stdout.splitlines()[-1] == "1000"


async def test_root_folder_of_others(provider: LocalProvider, tmp_path: Path, layer: bytes) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(root)
    for profile in ("standard", "strict"):
        box = await make(provider, image=str(root), profile=profile)
        run = await box.sh("touch /workspace/x /tmp/x && cat /etc/kept && ls -d /root /home")
        assert run.stdout.startswith("kept\n"), run.stderr
        written = await box.sh("touch /x")
        assert (written.status == 0) == (profile == "standard")
    assert not (root / "workspace").exists()
    assert not (root / "x").exists()

    if provider.host.is_root:
        root.chmod(0o750)
        with pytest.raises(errors.ImageNotFoundError, match="chmod 755"):
            await make(provider, image=str(root))


@pytest.mark.parametrize("name", ["../escaped", "etc/../../escaped", "a/b/../../../escaped"])
async def test_names_outside_are_refused(
    provider: LocalProvider, tmp_path: Path, layer: bytes, name: str
) -> None:
    image = docker_save(tmp_path / "image.tar", [layer, tar_of({name: b"x"})])
    with pytest.raises(errors.SandboxStartError, match="leads out"):
        await provider.create(SandboxSpec(image=str(image)))
    assert not list(tmp_path.rglob("escaped"))


async def test_links_stay_in_an_image(
    provider: LocalProvider, tmp_path: Path, layer: bytes
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    links = {"out": str(outside), "up": "../../../../../../..", "loop": "loop/x"}
    second = tar_of({**links, "out/written": b"x", "up/written-up": b"x"})
    image = docker_save(tmp_path / "image.tar", [layer, second])
    box = await make(provider, image=str(image))
    assert sorted(os.listdir(outside)) == ["secret"]
    assert not Path("/written-up").exists()
    assert (await box.sh("cat /out/secret")).status != 0
    hard = tar_of({"hard": f"=out/../../../..{outside}/secret"})
    image = docker_save(tmp_path / "hard.tar", [layer, second, hard])
    with pytest.raises(errors.SandboxStartError, match="leads out"):
        await provider.create(SandboxSpec(image=str(image)))


async def test_partial_extractions_are_removed(
    provider: LocalProvider, layer: bytes, tmp_path: Path
) -> None:
    cache, me = tmp_path / "cache" / "images", owner_here()
    older = (f".extracting-{maker}-x" for maker in (me, f"{os.getpid()}-1-{me.split('-')[2]}"))
    mine, dead, left = (cache / name for name in (*older, ".temporary-0"))
    for folder in (mine, dead, left):
        (folder / "image").mkdir(parents=True)
    with FolderStore(cache, shutil.rmtree).temporary() as filled:
        await make(provider, image=str(docker_save(tmp_path / "image.tar", [layer])))
        assert filled.exists()
    assert mine.exists()
    assert not dead.exists()
    assert not left.exists()


@pytest.fixture
def registry(tmp_path: Path, layer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    folder = tmp_path / "registry"
    folder.mkdir()
    with Registry(folder) as registry:
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(folder / "docker/config.json"))
        registry.push(docker_save(tmp_path / "image.tar", [layer]), "team/snapshots:tool")
        yield registry


def cached(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache" / "images"))


async def test_an_image_of_a_registry_is_pulled_once_and_then_used_without_the_registry(
    registry: Registry, provider: LocalProvider, tmp_path: Path
) -> None:
    image = f"docker://{registry.repository}:tool"
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(lambda: make(provider, image=image))
    assert registry.layer_pulls() == 1
    registry.stop()
    box = await make(provider, image=image)
    run = await box.sh("echo $FROM_IMAGE; cat /etc/kept; id -u")
    assert run.stdout == "yes\nkept\n1000\n", run.stderr
    assert (await box.inner.info()).image == image
    assert len(cached(tmp_path)) == 1


def test_what_cannot_be_pulled_says_why_and_leaves_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(image: str) -> errors.SandboxError:
        with Session("local", image=image) as session, pytest.raises(errors.SandboxError) as caught:
            session.run(["true"]).result(60)
        return caught.value

    unknown = error(f"docker://{registry.repository}:other")
    assert type(unknown) is errors.ImageNotFoundError
    assert "manifest unknown" in str(unknown)
    assert "level=" not in str(unknown)
    registry.log_in("tester:wrong")
    refused = error(f"docker://{registry.repository}:tool")
    assert type(refused) is errors.ImageNotFoundError
    assert "docker login" in str(refused)
    assert "is not the name of an image" in str(error("docker://--help"))
    registry.log_in("tester:sesame")
    registry.stop()
    silent = error(f"docker://{registry.repository}:tool")
    assert type(silent) is errors.ProviderUnavailableError
    monkeypatch.setenv("PATH", "/nothing")
    assert type(error("docker://python:3.11")) is errors.ConfigurationError
    assert cached(tmp_path) == []


def test_a_pull_ends_with_the_time_limit_of_its_start(registry: Registry, tmp_path: Path) -> None:
    image = f"docker://{registry.repository}:tool"
    assert registry._process is not None
    registry._process.send_signal(signal.SIGSTOP)
    try:
        with Session("local", image=image, start_timeout=2) as session:
            with pytest.raises(errors.SandboxError, match="start_timeout=2 s"):
                session.run(["true"]).result(60)
            assert not any(registry.repository in each.args for each in processes())
            assert cached(tmp_path) == []
    finally:
        registry._process.send_signal(signal.SIGCONT)
