"""Hostile clients of `sandboxkit serve`, which lends them sandboxes of the machine that it runs on."""

import contextlib
import functools
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.testing.conformance._base import DEADLINE, token
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker
from tests.service_here import service

CASES = beside(__file__)

ALICE, BOB = "a" * 20, "b" * 20
SECRET = "another client's token"
REFUSED = (403, 422)

Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the server that could serve as a root, with a secret in it."""
    folder = tmp_path_factory.mktemp("server")
    for name in ("bin", "usr"):
        (folder / name).mkdir()
    (folder / "tokens").write_text(SECRET)
    return folder


def _ask(url: str, secret: str, method: str, path: str, body: object = None) -> tuple[int, str]:
    parts = urlsplit(url)
    assert parts.hostname
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=DEADLINE)
    with contextlib.closing(made) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


@contextlib.contextmanager
def _served(folder: Path, *arguments: str, provider: str = "local") -> Iterator[str]:
    tokens = folder / "clients"
    tokens.write_text(f"alice-{token()} {ALICE}\nbob-{token()} {BOB}\n")
    with service(provider, "--tokens", str(tokens), *arguments) as running:
        yield running.url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose operator has listed nothing."""
    with _served(tmp_path_factory.mktemp("closed"), "--tag", "operator:mine") as url:
        yield url


@pytest.fixture(scope="module")
def alice(url: str) -> Ask:
    return functools.partial(_ask, url, ALICE)


@pytest.fixture(scope="module")
def bob(url: str) -> Ask:
    return functools.partial(_ask, url, BOB)


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Ask]:
    """A client of a service whose operator has listed something."""
    allowed = [
        *("--allow-image", "docker://python:*", "--allow-image", "*", "--allow-image", "/tmp/*"),
        *("--allow-image", str(root / "listed"), "--allow-network", "internet"),
        *("--allow-user", "root", "--max-memory-mb", "96", "--max-pids", "40"),
    ]
    (root / "listed" / "bin").mkdir(parents=True)
    with _served(tmp_path_factory.mktemp("open"), *allowed) as url:
        yield functools.partial(_ask, url, ALICE)


def _refused(answer: tuple[int, str], *words: str) -> None:
    status, text = answer
    assert status in REFUSED, answer
    assert all(word in text for word in words), answer


IMAGES = CASES["images"]
UNLISTED = [each for each in IMAGES if not each.startswith("docker://py")] + CASES["beside"]


@pytest.mark.parametrize(
    ("open_", "image"),
    [*((False, image) for image in IMAGES), *((True, image) for image in UNLISTED)],
)
def test_no_unlisted_image_is_lent(
    alice: Ask, listing: Ask, root: Path, open_: bool, image: str
) -> None:
    image = image.format(root=root, name=root.name)
    ask = listing if open_ else alice
    _refused(ask("POST", "/v1/sandboxes", {"image": image}), "image=", "--allow-image")


@pytest.mark.parametrize(("path", "body", "words"), CASES["refused"], ids=json.dumps)
def test_what_no_client_has_or_the_operator_does_not_allow_is_refused(
    alice: Ask, path: str, body: dict[str, Any], words: list[str]
) -> None:
    _refused(alice("POST", path, body), *words)


@pytest.mark.parametrize("wanted", [{"image": "{root}"}, {"network": "internet"}, {"user": "root"}])
def test_a_creation_with_a_key_gets_no_more(alice: Ask, root: Path, wanted: dict[str, str]) -> None:
    key = token()
    body = {name: value.format(root=root) for name, value in wanted.items()}
    _refused(alice("POST", "/v1/sandboxes", {**body, "key": key, "owned": True}), "--allow-")
    assert alice("DELETE", f"/v1/sandboxes/creations/{key}")[1] == '{"id":""}'


@pytest.mark.parametrize("field", ["image", "docker_image", "network", "user", "env"])
def test_a_task_chooses_no_option_of_the_sandbox(alice: Ask, root: Path, field: str) -> None:
    code = "import os, socket\ndef f(): return os.getuid() == 0 or os.path.exists('/tokens')"
    task = {"test_list": ["assert f() == False"], field: str(root)}
    status, text = alice("POST", "/v1/grade", {"task": task, "submissions": [code]})
    assert status in REFUSED or json.loads(text)["outcome"] == "passed", text


def _sandbox(ask: Ask, **wanted: object) -> str:
    status, text = ask("POST", "/v1/sandboxes", wanted)
    assert status == 201, text
    return f"/v1/sandboxes/{json.loads(text)['id']}"


def _run(ask: Ask, path: str, *argv: str) -> str:
    status, text = ask("POST", f"{path}/exec", {"argv": argv})
    assert status == 200, text
    return str(json.loads(text)["stdout"])


@pytest.mark.parametrize(("method", "path", "body"), CASES["calls"])
def test_ids_of_others_are_none(alice: Ask, bob: Ask, method: str, path: str, body: object) -> None:
    mine = _sandbox(alice)
    assert bob(method, mine + path, body)[0] == 404
    assert _run(alice, mine, "echo", "here") == "here\n"
    alice("DELETE", mine)


def test_a_sandbox_of_the_server_s_own_is_no_client_s(alice: Ask) -> None:
    with Session("local", tags="operator:mine") as session:
        sandbox = session.sandbox().start().result(DEADLINE)
        assert alice("GET", f"/v1/sandboxes/{sandbox.id}")[0] == 404
        assert alice("DELETE", f"/v1/sandboxes/{sandbox.id}")[0] == 204
        assert sandbox.exec(["echo", "here"]).result(DEADLINE).stdout == "here\n"


@pytest.mark.parametrize("sandbox_id", ["%2e%2e", "%2e", "..%2f..%2fetc", "%00", "a%5cb", "*"])
def test_an_id_is_no_path(alice: Ask, sandbox_id: str) -> None:
    assert alice("GET", f"/v1/sandboxes/{sandbox_id}")[0] == 404


@pytest.mark.parametrize("tags", CASES["tags"], ids=lambda tags: next(iter(tags)))
def test_a_client_s_tags_are_no_tags_of_the_server(alice: Ask, tags: dict[str, str]) -> None:
    mine = _sandbox(alice, tags=tags)
    listed = Sandbox.list("operator:mine", provider="local").result(DEADLINE)
    [info] = [info for info in listed if mine.endswith(info.id)]
    assert not tags.items() & info.tags.items()
    assert "sandboxkit-serve" in info.tags
    assert json.loads(alice("GET", mine)[1])["tags"] == tags
    alice("DELETE", mine)


@pytest.mark.parametrize("text", ["b" * 20_000, "a\x00b", "a\nb", "\ud800"])
def test_tags_that_would_not_fit_or_show_are_refused(alice: Ask, text: str) -> None:
    _refused(alice("POST", "/v1/sandboxes", {"tags": {"a": text}}), "tags")
    _refused(alice("POST", "/v1/sandboxes", {"tags": {text: "a"}}), "tags")
    assert alice("GET", "/v1/sandboxes")[0] == 200


def test_variables_are_those_of_the_client_alone(alice: Ask) -> None:
    mine = _sandbox(alice, env={"A": "${HOME}"}, secrets={"B": "$PATH"})
    assert _run(alice, mine, "printenv", "A", "B") == "${HOME}\n$PATH\n"
    assert ALICE not in _run(alice, mine, "env")
    alice("DELETE", mine)


@pytest.fixture
def dial() -> Iterator[tuple[str, ...]]:
    """A command that asks a service on the server's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as own:

        def answer() -> None:
            with contextlib.suppress(OSError), own.accept()[0] as connection:
                connection.sendall(b"inside")

        threading.Thread(target=answer, daemon=True).start()
        yield "python3", "-c", CASES["dial"], str(own.getsockname()[1])


def test_a_sandbox_without_options_reaches_nothing(alice: Ask, dial: tuple[str, ...]) -> None:
    mine = _sandbox(alice, network="none", memory_mb=128, pids=64, profile="strict", lifetime=60)
    assert _run(alice, mine, *dial) == "no\n"
    alice("DELETE", mine)


def test_a_listed_network_and_user_work(listing: Ask, dial: tuple[str, ...]) -> None:
    mine = _sandbox(listing, network="internet", user="root")
    assert _run(listing, mine, *dial) == "inside\n"
    assert _run(listing, mine, "id", "-u") == "0\n"
    listing("DELETE", mine)


def test_a_listed_folder_is_what_the_operator_named(listing: Ask, root: Path) -> None:
    status, text = listing("POST", "/v1/sandboxes", {"image": str(root / "listed")})
    assert status not in REFUSED or "--allow-image" not in text  # it is a root with nothing in it


def test_the_operator_s_limit_is_what_a_client_gets(listing: Ask) -> None:
    mine = _sandbox(listing)
    assert _run(listing, mine, "echo", "here") == "here\n"
    _refused(listing("POST", "/v1/sandboxes", {"memory_mb": 97}), "memory_mb=97", "96")
    _refused(listing("POST", "/v1/sandboxes", {"pids": 41}), "pids=41", "40")
    listing("DELETE", mine)


def test_on_docker_clients_name_the_images_that_a_pattern_lists(tmp_path: Path) -> None:
    require_docker()
    name, _, tag = TEST_IMAGE.rpartition(":")
    listed = ["--allow-image", f"{name}:*", "--profile", "strict", "--max-memory-mb", "128"]
    with _served(tmp_path, *listed, provider="docker") as url:
        ask = functools.partial(_ask, url, ALICE)
        for image in ("python:3.11-slim", f"{name}:5000/x:{tag}", f"{name}:../x", "/", "sha256:12"):
            _refused(ask("POST", "/v1/sandboxes", {"image": image}), "image=", "--allow-image")
        for wanted in ({"profile": "standard"}, {"network": "internet"}, {"user": "root"}):
            _refused(ask("POST", "/v1/sandboxes", wanted), next(iter(wanted)))
        mine = _sandbox(ask, image=TEST_IMAGE)
        assert _run(ask, mine, "id", "-u") != "0\n"
        ask("DELETE", mine)
