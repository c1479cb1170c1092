"""Tasks of somebody else: folders, archives, rows and Dockerfiles reach nothing of this machine but themselves."""

import dataclasses
import io
import os
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxkit import ConfigurationError, Egress, Image, Session
from sandboxkit.images import RegistryImage, image_on
from sandboxkit.integrations.harbor import load_task as load_harbor
from sandboxkit.integrations.swe import SweEnv, Task, _source, load_task, load_tasks
from sandboxkit.integrations.swe._grading import make_sandbox
from sandboxkit.transfers import _archive

CANARY = "canary-of-this-machine"
SECONDS = 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of this machine's user, with whatever a task may look for."""
    folder = tmp_path / "outside"
    for name in ("instruction.md", "test.sh", "judge.py", "secret", "usr/x", "tests/test.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CANARY)
    return folder


@contextmanager
def in_time() -> Iterator[None]:
    """Fail if the block hangs, as a read of a pipe does."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write(folder: Path, **files: str) -> Path:
    """Write a task folder with these files."""
    for name, text in {"instruction.md": "Do.", "tests/test.sh": "true", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def link(folder: Path, name: str, target: str | Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def packed(task: Task) -> bytes:
    """All that a sandbox may get of a task."""
    folders = [each for each in (task.tests, task.seeds) if each is not None]
    texts = f"{task.instruction}{task.setup}{task.env}{task.test_env}".encode()
    return texts + b"".join(b"".join(_archive._archive(str(each), None)) for each in folders)


IMAGES = [
    "/",
    "~",
    "~/root",
    ".",
    "..",
    "../outside",
    "./outside",
    "outside/",
    "file:///outside",
    "docker:///outside",
    "docker://../outside",
    "docker://docker://debian",
    "docker-archive:/outside.tar",
    "oci:/outside",
    "oci:outside:/x",
    "a/../../outside",
    "debian\n",
    "debian --privileged",
    "-v/:/host",
    "${HOME}",
    "sha256:" + "a" * 64,
    "a" * 64,
    "debian@sha256:abc",
    "\u0661debian",
    "x" * 600,
    "\x1b[2Jdebian",
]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("where", ["image.txt", "task.toml", "Dockerfile", "harbor"])
def test_an_image_that_is_no_registry_s_is_refused(tmp_path: Path, image: str, where: str) -> None:
    quoted = "".join(f"\\U{ord(letter):08x}" for letter in image)
    settings = {"task.toml": f'[environment]\ndocker_image = "{quoted}"\n'}
    files = {
        "image.txt": {"image.txt": image + "/x" * (image == "debian\n")},
        "Dockerfile": {"environment/Dockerfile": f"FROM {image}"},
    }.get(where, settings)
    load = load_harbor if where == "harbor" else load_task
    folder = write(tmp_path / "task", **{"task.toml": "", **files})
    if where == "Dockerfile" and image in ("debian\n", "debian --privileged"):
        image = "-"
        (folder / "environment" / "Dockerfile").write_text("FROM -")
    with pytest.raises(
        ConfigurationError, match=r"task.*not the name of an image of a registry"
    ) as refused:
        load(folder)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("base", [*IMAGES[:15], "home/../.."])
def test_from_names_an_image_of_a_registry(tmp_path: Path, base: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\n")
    with pytest.raises(
        ConfigurationError, match=r"line 1: FROM.*not the name of an image of a registry"
    ):
        Image.from_dockerfile(tmp_path / "Dockerfile")


@pytest.mark.parametrize(
    ("image", "on_local", "on_docker"),
    [
        ("home", "docker://home", "home:latest"),
        ("3", "docker://3", "3:latest"),
        ("python:3.11-slim", "docker://python:3.11-slim", "python:3.11-slim"),
        ("docker://debian:12", "docker://debian:12", "debian:12"),
        ("sandboxkit/python:3.11", "docker://sandboxkit/python:3.11", "sandboxkit/python:3.11"),
        ("registry.example:5000/a/b", "docker://registry.example:5000/a/b", None),
        ("localhost:5000/a-b/c_d:T@sha256:" + "0" * 64, None, None),
        ("ghcr.io/x/y.z__w:v1", None, None),
    ],
)
def test_a_name_of_a_registry_is_no_path_and_no_image_id_anywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    on_local: str | None,
    on_docker: str | None,
) -> None:
    (tmp_path / "home" / "usr").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    name = load_task(write(tmp_path / "task", **{"image.txt": image})).image
    assert name == image.removeprefix("docker://")
    assert image_on("local", name) == on_local or f"docker://{name}"
    tagged = ":" in image.rpartition("/")[2]
    assert image_on("docker", name) == (on_docker or name + "" if tagged else f"{name}:latest")
    assert image_on("e2b", name) == name
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\n")
    assert isinstance(Image.from_dockerfile(tmp_path / "Dockerfile").base, RegistryImage)


def test_on_local_a_task_s_image_is_pulled_and_the_caller_s_own_is_a_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "home" / "usr").mkdir(parents=True)
    task = load_task(write(tmp_path / "task", **{"image.txt": "home"}))
    own = dataclasses.replace(task, image=str(tmp_path / "home"))
    with Session("local") as session:
        assert make_sandbox(session, task).spec.image == "docker://home"
        assert make_sandbox(session, own).spec.image == str(tmp_path / "home")


def leading_out(name: str) -> Callable[[Path, Path], None]:
    return lambda folder, outside: link(folder, name, outside / Path(name).name)


def to_outside(name: str, where: str = "") -> Callable[[Path, Path], None]:
    return lambda folder, outside: link(folder, name, f"{outside}{where}")


def pipe(name: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, outside: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def text(name: str, content: str | bytes) -> Callable[[Path, Path], None]:
    def make(folder: Path, outside: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def bound(folder: Path, outside: Path) -> None:
    (folder / "environment" / "seeds").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder / "environment" / "seeds")
        try:
            server.bind("s")
        finally:
            os.chdir(here)


def deep(folder: Path, outside: Path) -> None:
    (folder / "environment/seeds" / "/".join("d" * 70)).mkdir(parents=True)


def sparse(folder: Path, outside: Path) -> None:
    (folder / "environment" / "seeds").mkdir(parents=True)
    with (folder / "environment" / "seeds" / "big").open("wb") as file:
        file.truncate(1 << 40)


def long_text(folder: Path, outside: Path) -> None:
    with (folder / "instruction.md").open("wb") as file:
        file.truncate(1 << 40)


def chained(folder: Path, outside: Path) -> None:
    link(folder, "environment/seeds", "../a/b")
    link(folder, "a", "c/..")
    link(folder, "c", outside)


HOSTILE = {
    "instruction": leading_out("instruction.md"),
    "instruction relative": to_outside("instruction.md", "/../outside/secret"),
    "tests": to_outside("tests"),
    "test.sh": leading_out("tests/test.sh"),
    "judge.py": leading_out("tests/judge.py"),
    "set-up": to_outside("setup.sh", "/secret"),
    "seeds": to_outside("environment/seeds"),
    "environment": to_outside("environment"),
    "task.toml": to_outside("task.toml", "/secret"),
    "image.txt": to_outside("image.txt", "/secret"),
    "Dockerfile": to_outside("environment/Dockerfile", "/secret"),
    "proc": lambda folder, outside: link(folder, "setup.sh", "/proc/self/environ"),
    "the root": lambda folder, outside: link(folder, "environment/seeds", "/"),
    "a home": lambda folder, outside: link(folder, "environment/seeds", Path.home()),
    "its parent": lambda folder, outside: link(folder, "environment/seeds", "../.."),
    "zero": lambda folder, outside: link(folder, "instruction.md", "/dev/zero"),
    "a loop": lambda folder, outside: link(folder, "instruction.md", "instruction.md"),
    "a chain": chained,
    "a pipe as instruction": pipe("instruction.md"),
    "a pipe as set-up": pipe("setup.sh"),
    "a pipe as settings": pipe("task.toml"),
    "a pipe as test": pipe("tests/test.sh"),
    "a pipe as judge": pipe("tests/judge.py"),
    "a pipe in tests": pipe("tests/deep/pipe"),
    "a pipe in seeds": pipe("environment/seeds/pipe"),
    "a pipe as Dockerfile": pipe("environment/Dockerfile"),
    "a pipe as image": pipe("image.txt"),
    "a socket in seeds": bound,
    "a deep folder": deep,
    "a terabyte": sparse,
    "a terabyte of text": long_text,
    "no UTF-8": text("setup.sh", b"\xff\xfe"),
    "no TOML": text("task.toml", "\0"),
    "nested TOML": text("task.toml", "a = " + "[" * 100_000),
    "a large number": text("task.toml", f"[sandboxkit]\nsetup_timeout = {'9' * 400}"),
    "no number": text("task.toml", "[sandboxkit]\nsetup_timeout = nan"),
    "a list": text("task.toml", "[sandboxkit]\nsetup_timeout = []"),
    "a NUL": text("task.toml", '[sandboxkit]\nartefacts = ["/a\\u0000b"]'),
    "a network": text("task.toml", '[sandboxkit]\nsetup_allow = ["evil.example"]'),
    "every network": text("task.toml", '[sandboxkit]\nsetup_allow = ["*"]'),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a collection"])
def test_a_hostile_folder_is_refused_by_its_name(
    tmp_path: Path, outside: Path, kind: str, alone: bool
) -> None:
    folder = write(tmp_path / "tasks" / "one")
    HOSTILE[kind](folder, outside)
    with in_time(), pytest.raises(ConfigurationError, match=r"one|no folder") as refused:
        load_tasks(folder if alone else folder.parent)
    assert CANARY not in str(refused.value)


HARBOR = {
    "public": 'network_mode = "public"',
    "internet": "allow_internet = true",
    "listed": 'network_mode = "allowlist"\nallowed_hosts = ["evil.example"]',
    "wildcard": 'network_mode = "allowlist"\nallowed_hosts = ["*"]',
    "a secret": 'env = { A = "${HF_TOKEN}" }',
    "a path": 'env = { A = "${PATH}" }',
    "with a default": 'env = { A = "${HF_TOKEN:-none}" }',
    "gpus": "gpus = 8",
    "a large memory": f"memory = '{'9' * 400}G'",
}


@pytest.mark.parametrize("kind", HARBOR)
def test_a_task_of_harbor_gets_no_network_and_no_variable_by_its_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    toml = f'[environment]\ndocker_image = "debian:12"\n{HARBOR[kind]}\n'
    folder = write(tmp_path / "one", **{"task.toml": toml})
    with pytest.raises(ConfigurationError, match="one") as refused:
        load_harbor(folder, env_names="HF_TOKEN" if "secret" in kind else ())
    assert CANARY not in str(refused.value)


def test_the_caller_lists_networks_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "given")
    toml = (
        '[environment]\ndocker_image = "debian:12"\nenv = { A = "${HF_TOKEN}" }\n'
        'network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n'
    )
    folder = write(tmp_path / "one", **{"task.toml": toml})
    task = load_harbor(folder, allow_network=["pypi.org"], env_names=["HF_TOKEN"])
    assert (task.network, task.env) == (Egress(allow=["pypi.org"]), {"A": "given"})
    with pytest.raises(ConfigurationError, match=r"allow_network=\['pypi\.org'\]"):
        load_harbor(folder, allow_network="pypi.org.evil", env_names=["HF_TOKEN"])
    with pytest.raises(ConfigurationError, match=r"env_names=\['HF_TOKEN'\]"):
        load_harbor(folder, allow_network="internet")


@pytest.mark.parametrize(
    "name", ["environment", "environment/Dockerfile", "tests", "instruction.md"]
)
def test_harbor_s_loader_reads_no_link_that_leaves(
    tmp_path: Path, outside: Path, name: str
) -> None:
    folder = write(tmp_path / "one", **{"task.toml": '[environment]\ndocker_image = "debian"\n'})
    link(folder, name, outside)
    with pytest.raises(ConfigurationError, match="outside"):
        load_harbor(folder)


def test_a_task_that_is_a_link_out_of_its_collection_is_refused(
    tmp_path: Path, outside: Path
) -> None:
    write(tmp_path / "tasks" / "one")
    link(tmp_path / "tasks", "two", outside)
    with pytest.raises(ConfigurationError, match=r"two.*outside"):
        load_tasks(tmp_path / "tasks")
    link(tmp_path / "other" / "set", "two", outside)
    with pytest.raises(ConfigurationError, match=r"two.*outside"):
        load_tasks(tmp_path / "other")
    link(tmp_path / "third", "tasks.tar.gz", outside / "secret")
    with pytest.raises(ConfigurationError, match="outside"):
        load_tasks(tmp_path / "third")
    (tmp_path / "fourth").mkdir()
    os.mkfifo(tmp_path / "fourth" / "tasks.tar.gz")
    with in_time(), pytest.raises(ConfigurationError, match="not a file"):
        load_tasks(tmp_path / "fourth")


@pytest.mark.parametrize("name", ["a\nb", "\x1b]0;owned\x07", "a\u202eb", "a\udcffb", "x" * 201])
def test_a_name_that_a_terminal_would_obey_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="printable name") as refused:
        load_tasks(write(tmp_path / name).parent)
    assert str(refused.value).isprintable()


def test_what_a_task_may_have_is_bounded_by_the_session(tmp_path: Path) -> None:
    toml = "[environment]\nmemory_mb = 1000\n"
    task = load_task(write(tmp_path / "one", **{"task.toml": toml}))
    with Session("local", memory_mb=1000) as session:
        assert make_sandbox(session, task).spec.memory_mb == 1000
    refused = pytest.raises(ConfigurationError, match="task 'one' asks for memory_mb=1000")
    with Session("local", memory_mb=999) as session, refused:
        make_sandbox(session, task)


Tar = tarfile.TarFile


def member(
    tar: Tar, name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data)
    tar.addfile(info, io.BytesIO(data.encode()))


def realpath_overflow(tar: Tar, outside: Path) -> None:
    """Lead tarfile's data filter out, as in CVE-2025-4517."""
    path, steps = "", "abcdefghijklmnop"
    for step in steps:
        member(tar, os.path.join(path, "d" * 247), tarfile.DIRTYPE)
        member(tar, os.path.join(path, step), tarfile.SYMTYPE, "d" * 247)
        path = os.path.join(path, "d" * 247)
    end = os.path.join("/".join(steps), "l" * 254)
    member(tar, end, tarfile.SYMTYPE, "../" * len(steps))
    member(tar, "escape", tarfile.SYMTYPE, f"{end}/{'../' * 16}{str(outside)[1:]}")
    member(tar, "hard", tarfile.LNKTYPE, "escape/secret")
    member(tar, "hard", data="overwritten")


def through(target: Callable[[Path], str]) -> Callable[[Tar, Path], None]:
    def build(tar: Tar, outside: Path) -> None:
        member(tar, "t/way", tarfile.SYMTYPE, target(outside))
        member(tar, "t/way/secret", data="overwritten")

    return build


def single(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = ""
) -> Callable[[Tar, Path], None]:
    return lambda tar, outside: member(tar, name, kind, target.replace("OUT", str(outside)))


ARCHIVES: dict[str, Callable[[Tar, Path], None]] = {
    "realpath": realpath_overflow,
    "through an absolute link": through(str),
    "through a relative link": through(lambda outside: "../" * 40 + str(outside)[1:]),
    "up": single("../outside/secret"),
    "up within": single("t/../../outside/secret"),
    "absolute": single("/outside/secret"),
    "hard link out": single("hard", tarfile.LNKTYPE, "OUT/secret"),
    "hard link up": single("hard", tarfile.LNKTYPE, "../../../../outside/secret"),
    "hard link to nothing": single("hard", tarfile.LNKTYPE, "nothing"),
    "deep": single("/".join("d" * 100)),
    "long": single("n" * 300),
    "linked instruction": single("t/instruction.md", tarfile.SYMTYPE, "OUT/instruction.md"),
    "linked tests": single("t/tests", tarfile.SYMTYPE, "OUT"),
    "linked task": single("u", tarfile.SYMTYPE, "OUT"),
    "device": single("t/instruction.md", tarfile.CHRTYPE),
    "pipe": single("t/instruction.md", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_hostile_archive_writes_and_reads_nothing_outside(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    with tarfile.open(tmp_path / "tasks.tar.gz", "w:gz") as tar:
        if "linked tests" not in kind:
            member(tar, "t/tests/test.sh", data="true")
        ARCHIVES[kind](tar, outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with in_time(), pytest.raises(ConfigurationError):
        load_tasks(tmp_path / "tasks.tar.gz")
    assert before == {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}


@pytest.mark.skipif(sys.version_info >= (3, 11, 13), reason="this Python's data filter is mended")
def test_the_escape_is_real_with_the_data_filter_of_this_python(
    tmp_path: Path, outside: Path
) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        realpath_overflow(tar, outside)
    with tarfile.open(tmp_path / "t.tar") as tar:
        tar.extractall(tmp_path / "into", filter="data")
    assert (outside / "secret").read_text() == "overwritten"


def test_bombs_are_refused_before_they_fill_the_disk(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _source._LIMITS.max_files == 200_000
    monkeypatch.setattr(_source, "_LIMITS", dataclasses.replace(_source._LIMITS, max_files=1000))

    def many(tar: Tar) -> None:
        for number in range(1001):
            member(tar, f"{number}", tarfile.SYMTYPE, "x")

    def large(tar: Tar) -> None:
        info = tarfile.TarInfo("large")
        info.size = 5 << 30
        tar.fileobj.write(info.tobuf())

    for build in (many, large):
        archive = tmp_path / f"{build.__name__}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            build(tar)
        with pytest.raises(ConfigurationError, match="not a readable"):
            load_tasks(archive)
    assert list((cache / "tasks").iterdir()) == []


def test_an_honest_archive_keeps_its_links_and_programs(tmp_path: Path) -> None:
    source = write(tmp_path / "src" / "one", **{"environment/seeds/v1/run.sh": "true"})
    seeds = source / "environment" / "seeds"
    (seeds / "v1" / "run.sh").chmod(0o755)
    (seeds / "latest").symlink_to("v1")
    (seeds / "python").symlink_to("/usr/bin/python3")
    os.link(seeds / "v1" / "run.sh", seeds / "same")
    for mode, form in (("w:gz", tarfile.PAX_FORMAT), ("w", tarfile.GNU_FORMAT)):
        with tarfile.open(tmp_path / f"{form}.tar.gz", mode, format=form) as tar:  # type: ignore[call-overload]  # a literal
            tar.add(tmp_path / "src", "tasks")
        made = load_tasks(tmp_path / f"{form}.tar.gz")["one"].seeds
        assert made is not None
        assert os.readlink(made / "latest") == "v1"
        assert os.readlink(made / "python") == "/usr/bin/python3"
        assert (made / "same").read_text() == "true"
        assert os.access(made / "latest" / "run.sh", os.X_OK)


def test_honest_links_inside_a_folder_work(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks" / "one", **{"docs/task.md": "Linked.", "common/a": "seed"})
    write(tmp_path / "tasks" / "two", **{"environment/seeds/bin/python": ""})
    link(folder, "instruction.md", "docs/task.md")
    link(folder, "environment/seeds", "../common")
    link(folder, "common/latest", "a")
    link(tmp_path / "tasks" / "two", "environment/seeds/bin/python", "/usr/bin/python3")
    link(tmp_path / "tasks", "three", "two")
    (tmp_path / "given").symlink_to(tmp_path / "tasks")
    tasks = load_tasks(tmp_path / "given")
    assert list(tasks) == ["one", "three", "two"]
    assert tasks["one"].instruction == "Linked."
    assert tasks["one"].seeds == (folder / "common").resolve()
    assert b"seed" in packed(tasks["one"])
    (tmp_path / "alone").symlink_to(folder)
    assert load_task(tmp_path / "alone").instruction == "Linked."


@pytest.mark.anyio
async def test_a_link_in_seeds_is_a_link_in_the_sandbox_and_leads_to_nothing_of_this_machine(
    tmp_path: Path, outside: Path
) -> None:
    folder = write(tmp_path / "one")
    link(folder, "environment/seeds/leak", outside / "secret")
    link(folder, "tests/leak", outside / "secret")
    task = load_task(folder)
    assert CANARY.encode() not in packed(task)
    async with Session("local") as session, SweEnv(session, {"one": task}) as env:
        await env.reset("one")
        seen = await env.step("bash", {"command": "cat leak; ls -l"})
        assert CANARY not in seen.observation
        assert "leak ->" in seen.observation
        assert (await env.finish()).reward == 1.0


CONTEXTS: dict[str, Callable[[Path, Path], None]] = {
    "COPY way /x": to_outside("way"),
    "COPY way/secret /x": to_outside("way"),
    "COPY secret /x": leading_out("secret"),
    "COPY pipe /x": pipe("pipe"),
    "COPY folder /x": pipe("folder/pipe"),
    "COPY way/../secret /x": to_outside("way", "/usr"),
    'COPY ["a\\u0000b", "/x"]': text("a", ""),
    "COPY ../outside/secret /x": text("a", ""),
    "COPY missing /x": text("a", ""),
    "COPY /etc/hostname /x": text("a", ""),
    "RUN echo \x1b]0;owned\x07": text("a", ""),
}


@pytest.mark.parametrize("line", CONTEXTS)
def test_a_dockerfile_copies_nothing_from_outside_of_its_context(
    tmp_path: Path, outside: Path, line: str
) -> None:
    (tmp_path / "context").mkdir()
    CONTEXTS[line](tmp_path / "context", outside)
    (tmp_path / "context" / "Dockerfile").write_text(f"FROM default\n{line}\n")
    with in_time(), pytest.raises(ConfigurationError) as refused:
        Image.from_dockerfile(tmp_path / "context" / "Dockerfile")
    assert str(refused.value).isprintable()


def test_a_dockerfile_that_is_a_pipe_or_leads_out_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "context").mkdir()
    os.mkfifo(tmp_path / "context" / "pipe")
    link(tmp_path / "context", "way", outside / "secret")
    for name in ("pipe", "way", "missing"):
        with in_time(), pytest.raises(ConfigurationError, match=name):
            Image.from_dockerfile(tmp_path / "context" / name)
    with in_time(), pytest.raises(ConfigurationError, match="not a file"):
        Image().copy(tmp_path / "context" / "pipe", "/x").build("local").result(SECONDS)


def test_a_dockerfile_copies_through_links_within_its_context(tmp_path: Path) -> None:
    write(tmp_path, **{"app/tool.py": "print()", "Dockerfile": "FROM debian:12\nCOPY tool /bin/\n"})
    (tmp_path / "tool").symlink_to("app/tool.py")
    (step,) = Image.from_dockerfile(tmp_path / "Dockerfile").steps
    assert step.text == f"COPY {tmp_path.resolve()}/app/tool.py /bin/tool"


def test_a_stage_is_the_image_that_it_is_made_from(tmp_path: Path) -> None:
    lines = "FROM debian:12 AS base\nFROM base\nWORKDIR /app\n"
    task = load_task(write(tmp_path / "one", **{"environment/Dockerfile": lines}))
    assert (task.image, task.workdir) == ("debian:12", "/app")


FILES = "instruction.md tests test.sh judge.py environment seeds Dockerfile image.txt task.toml setup.sh a b"
NAMES = st.sampled_from([*FILES.split(), "x\ny", "\x1b[31m", "\udcff", "-rf", "n" * 200])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
TARGETS = st.one_of(
    PATHS,
    st.lists(
        st.sampled_from(["..", ".", "a", "outside", "one", "tests"]), min_size=1, max_size=6
    ).map("/".join),
    st.sampled_from(
        [
            "OUT",
            "OUT/secret",
            "OUT/instruction.md",
            "OUT/tests",
            "/",
            "/dev/zero",
            "/proc/self/environ",
        ]
    ),
)
CONTENT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            '[environment]\ndocker_image = "OUT"',
            "[environment]\ndocker_image = 3",
            '[environment]\nenv = { A = "${CANARY}" }',
            '[sandboxkit]\nartefacts = "OUT"',
            "[sandboxkit]\nsetup_allow = 7",
            "[verifier]\ntimeout_sec = '1'",
            "FROM OUT",
            "FROM debian AS a\nFROM a",
            "OUT",
            "\0",
        ]
    ),
)
ENTRIES = st.one_of(
    st.tuples(st.just("file"), PATHS, CONTENT),
    st.tuples(st.just("link"), PATHS, TARGETS),
    st.tuples(st.just("pipe"), PATHS, st.just("")),
    st.tuples(st.just("folder"), PATHS, st.just("")),
)
Entries = list[tuple[str, str, str]]


def fill(folder: Path, outside: Path, entries: Entries) -> None:
    """Write what fits, as a task of somebody else: entries whose place is taken are left out."""
    write(folder)
    for kind, name, content in entries:
        path, content = folder / name, content.replace("OUT", str(outside))
        # A link of an earlier entry may not be followed here, or this test would write outside.
        if any(parent.is_symlink() for parent in [path, *path.parents]):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind != "folder" and not path.is_dir():
                path.unlink(missing_ok=True)
            if kind == "file":
                path.write_text(content, "utf-8", "surrogateescape")
            elif kind == "link":
                path.symlink_to(content)
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                path.mkdir()
        except OSError:
            continue


def attack(entries: Entries) -> None:
    """Load what the entries make, and look at everything that would be sent to a sandbox."""
    with tempfile.TemporaryDirectory() as temporary:
        outside, folder = Path(temporary, "outside"), Path(temporary, "tasks", "one")
        for name in ("secret", "instruction.md", "tests/test.sh"):
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_text(CANARY)
        fill(folder, outside, entries)
        before = sorted(outside.rglob("*"))
        loaders: tuple[Callable[[], list[Task]], ...] = (
            lambda: list(load_tasks(folder.parent).values()),
            lambda: [load_task(folder)],
            lambda: [load_harbor(folder)],
            lambda: [load_harbor(folder, image="default")],
        )
        for load in loaders:
            try:
                with in_time():
                    tasks = load()
                    sent = b"".join(map(packed, tasks))
            except ConfigurationError as error:
                tasks, sent = [], str(error).encode("utf-8", "surrogateescape")
            assert CANARY.encode() not in sent
            for task in tasks:
                assert task.image is None or isinstance(task.image, RegistryImage)
                assert (task.network, task.setup_network, task.test_network) == (None, None, None)
        assert sorted(outside.rglob("*")) == before


@settings(max_examples=300)
@given(st.lists(ENTRIES, max_size=12))
def test_no_folder_shows_anything_outside_of_it(entries: Entries) -> None:
    attack(entries)


@pytest.mark.nightly
@settings(max_examples=100_000)
@given(st.lists(ENTRIES, max_size=20))
def test_no_folder_of_many_shows_anything_outside_of_it(entries: Entries) -> None:
    attack(entries)
