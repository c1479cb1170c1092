"""Sandboxes over HTTP: each client sees its own, through any replica."""

import time
import uuid
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from sandboxkit.integrations.serve import Token
from sandboxkit.testing.conformance._base import until
from tests.serve.conftest import Serve, asking

# A client sees its sandboxes of all services on the machine: no other test has one with these names.
NUMBER = uuid.uuid4().hex[:8]
ALICE = Token(f"alice-{NUMBER}", "a" * 20, quota=1)
BOB = Token(f"bob-{NUMBER}", "b" * 20)
AS_ALICE, AS_BOB = ({"Authorization": f"Bearer {each.secret}"} for each in (ALICE, BOB))


@pytest.fixture
def sandbox(local: str, http: httpx.Client) -> Iterator[str]:
    """The URL of a new sandbox, which ends with the test."""
    made = http.post(f"{local}/v1/sandboxes", json={}).json()["id"]
    yield f"{local}/v1/sandboxes/{made}"
    http.delete(f"{local}/v1/sandboxes/{made}")


def test_the_description_of_the_paths_is_served(local: str, http: httpx.Client) -> None:
    paths = http.get(f"{local}/openapi.json").json()["paths"]
    assert {"/v1/grade", "/v1/run", "/run_code", "/slime", "/v1/sandboxes"} < set(paths)
    assert http.get(f"{local}/readyz").status_code == 200


def test_a_sandbox_keeps_files_between_commands(local: str, http: httpx.Client) -> None:
    files = {"/workspace/a.txt": "aGk="}
    made = http.post(f"{local}/v1/sandboxes", json={"files": files, "env": {"X": "1"}})
    assert made.status_code == 201
    url = f"{local}/v1/sandboxes/{made.json()['id']}"
    ran = http.post(
        f"{url}/exec", json={"argv": ["sh", "-c", "cat a.txt - > b.txt; exit $X"], "stdin": "!"}
    )
    assert (ran.json()["outcome"], ran.json()["returncode"]) == ("exited", 1)
    assert http.get(f"{url}/files", params={"path": "/workspace/b.txt"}).content == b"hi!"
    path = {"path": "/workspace/c"}
    assert http.put(f"{url}/files", params=path, content=b"\x00\xff").status_code == 204
    assert http.get(f"{url}/files", params=path).content == b"\x00\xff"
    assert http.get(f"{url}/files", params={"path": "/workspace/none"}).status_code == 404
    assert http.delete(url).status_code == 204
    assert http.delete(url).status_code == 204
    assert http.post(f"{url}/exec", json={"argv": ["true"]}).status_code == 404


def test_a_command_past_its_timeout_is_killed(sandbox: str, http: httpx.Client) -> None:
    ran = http.post(f"{sandbox}/exec", json={"argv": ["sleep", "100"], "timeout": 0.2}).json()
    assert (ran["outcome"], ran["returncode"]) == ("timeout", None)
    look = {"argv": ["sh", "-c", "ps | grep -c '[s]leep'"]}
    assert http.post(f"{sandbox}/exec", json=look).json()["stdout"] in ("0\n", "")


def test_a_command_that_cannot_be_started_says_so(sandbox: str, http: httpx.Client) -> None:
    ran = http.post(f"{sandbox}/exec", json={"argv": ["no-such-program"]})
    assert ran.status_code == 422
    assert "no-such-program" in ran.text


def test_a_client_sees_its_own_sandboxes_through_any_replica(
    serve: Serve, http: httpx.Client
) -> None:
    first, second = (serve(provider="local", pool=0, tokens=(ALICE, BOB)) for _ in range(2))
    made = http.post(f"{first}/v1/sandboxes", json={}, headers=AS_ALICE).json()["id"]
    for url in (first, second):
        run = f"{url}/v1/sandboxes/{made}/exec"
        assert http.post(run, json={"argv": ["true"]}, headers=AS_ALICE).json()["returncode"] == 0
        assert http.post(run, json={"argv": ["true"]}, headers=AS_BOB).status_code == 404
        file = f"{url}/v1/sandboxes/{made}/files"
        assert http.get(file, params={"path": "/etc/passwd"}, headers=AS_BOB).status_code == 404
        http.delete(f"{url}/v1/sandboxes/{made}", headers=AS_BOB)
        listed = http.get(f"{url}/v1/sandboxes", headers=AS_ALICE).json()
        assert [each["id"] for each in listed] == [made]
        assert http.get(f"{url}/v1/sandboxes", headers=AS_BOB).json() == []
    assert http.delete(f"{second}/v1/sandboxes/{made}", headers=AS_ALICE).status_code == 204
    assert http.get(f"{first}/v1/sandboxes", headers=AS_ALICE).json() == []


def test_a_replica_lends_no_more_sandboxes_than_it_may(serve: Serve, http: httpx.Client) -> None:
    url = f"{serve(provider='local', pool=0, sandboxes=1)}/v1/sandboxes"
    made = http.post(url, json={}).json()["id"]
    refused = http.post(url, json={})
    assert refused.status_code == 429
    assert "this replica has 1 sandboxes" in refused.text
    http.delete(f"{url}/{made}")
    assert http.post(url, json={"lifetime": 10**9}).status_code == 201


def test_a_longer_lifetime_than_the_services_is_the_services(
    serve: Serve, http: httpx.Client
) -> None:
    url = f"{serve(provider='local', pool=0, lifetime=100)}/v1/sandboxes"
    made = http.post(url, json={"lifetime": 10**9}).json()["id"]
    end = datetime.fromisoformat(http.get(f"{url}/{made}").json()["expires_at"])
    assert end.timestamp() < time.time() + 101


def test_an_undone_creation_leaves_nothing(serve: Serve, http: httpx.Client) -> None:
    url = f"{serve(provider='local', pool=0, tokens=(BOB,))}/v1/sandboxes"
    made = http.post(url, json={"key": "k"}, headers=AS_BOB).json()["id"]
    assert http.delete(f"{url}/creations/k", headers=AS_BOB).json() == {"id": made}
    assert http.get(url, headers=AS_BOB).json() == []


def test_a_command_ends_with_the_client_that_asked_for_it(sandbox: str, http: httpx.Client) -> None:
    run = f"{sandbox}/exec"
    look = {"argv": ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]}

    def runs() -> bool:
        return "sleep 4321" in http.post(run, json=look).json()["stdout"]

    with asking(run, {"argv": ["sleep", "4321"]}):
        until(runs, "the command runs", 60)
    until(lambda: not runs(), "the command has ended", 60)
