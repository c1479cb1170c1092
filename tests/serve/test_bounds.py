"""What the service refuses: strangers, too much work, too long bodies, open addresses."""

import threading
import time
from pathlib import Path

import httpx
import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve import ServiceConfig, Token, read_tokens
from sandboxkit.integrations.serve import serve as run_service
from tests.serve.conftest import Serve
from tests.serve.graders import Held, Mortal

ALICE, BOB = Token("alice", "a" * 20, quota=2), Token("bob", "b" * 20)
BODY = {"task": {}, "submissions": ["right"]}


def bearer(token: Token) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.secret}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + "c" * 20},
        {"Authorization": "Basic " + ALICE.secret},
        {"Authorization": ALICE.secret},
        {"Authorization": "Bearer " + ALICE.secret[:-1]},
    ],
)
def test_a_request_without_a_valid_token_is_refused(
    tokened: str, http: httpx.Client, headers: dict[str, str]
) -> None:
    for path in ("/v1/grade", "/v1/run", "/run_code", "/slime", "/v1/sandboxes"):
        for body in ({"code": "1", "language": "python"}, {}):
            answer = http.post(f"{tokened}{path}", json=body, headers=headers)
            assert answer.status_code == 401, path
    assert http.get(f"{tokened}/v1/sandboxes", headers=headers).status_code == 401


@pytest.fixture(scope="module")
def tokened() -> object:
    from tests.serve.conftest import replica

    with replica(provider=Mortal(), grader=Held(), tokens=(ALICE, BOB)) as url:
        yield url


def test_a_valid_token_is_needed_before_a_body_is_looked_at(
    serve: Serve, http: httpx.Client
) -> None:
    grader = Held()
    grader.let_go = True
    url = serve(provider=Mortal(), grader=grader, tokens=(ALICE,))
    assert http.post(f"{url}/v1/grade", json=BODY).status_code == 401
    assert grader.begun == 0
    assert http.post(f"{url}/v1/grade", json=BODY, headers=bearer(ALICE)).status_code == 200
    assert http.get(f"{url}/healthz").status_code == 200


class Waiting:
    """Requests in threads, until their answers are collected."""

    def __init__(self, url: str, grader: Held) -> None:
        self._url, self._grader = url, grader
        self._threads: list[threading.Thread] = []
        self.statuses: list[int] = []

    def ask(self, submissions: int, token: Token) -> None:
        before = self._grader.begun
        body = {"task": {}, "submissions": ["right"] * submissions}

        def work() -> None:
            answer = httpx.post(
                f"{self._url}/v1/grade", json=body, headers=bearer(token), timeout=120
            )
            self.statuses.append(answer.status_code)

        thread = threading.Thread(target=work)
        thread.start()
        self._threads.append(thread)
        while self._grader.begun < before + submissions:
            time.sleep(0.01)

    def collect(self) -> list[int]:
        self._grader.let_go = True
        for thread in self._threads:
            thread.join()
        return self.statuses


def test_a_client_past_its_quota_waits_and_others_do_not(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader, tokens=(ALICE, BOB))
    waiting = Waiting(url, grader)
    waiting.ask(2, ALICE)
    refused = http.post(f"{url}/v1/grade", json=BODY, headers=bearer(ALICE))
    assert refused.status_code == 429
    assert "the quota of 'alice' is full: 2 of 2" in refused.text
    assert int(refused.headers["retry-after"]) >= 1
    waiting.ask(3, BOB)
    assert waiting.collect() == [200, 200]
    assert http.post(f"{url}/v1/grade", json=BODY, headers=bearer(ALICE)).status_code == 200


def test_a_full_service_asks_to_come_back(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader, tokens=(BOB,), queue=3, pool=0)
    waiting = Waiting(url, grader)
    waiting.ask(3, BOB)
    refused = http.post(f"{url}/v1/run", json={"code": "1"}, headers=bearer(BOB))
    assert refused.status_code == 429
    assert "the service is full: 3 of 3" in refused.text
    fusion = {"code": "1", "language": "python"}
    assert http.post(f"{url}/run_code", json=fusion, headers=bearer(BOB)).status_code == 504
    assert waiting.collect() == [200]


def test_a_request_larger_than_the_queue_is_admitted_alone(
    serve: Serve, http: httpx.Client
) -> None:
    grader = Held()
    grader.let_go = True
    url = serve(provider=Mortal(), grader=grader, queue=2)
    body = {"task": {}, "submissions": ["right"] * 5}
    assert http.post(f"{url}/v1/grade", json=body).status_code == 200


def test_a_body_that_is_too_long_is_refused(serve: Serve, http: httpx.Client) -> None:
    url = serve(provider=Mortal(), grader=Held(), max_body=1000)
    assert http.post(f"{url}/v1/run", json={"code": "#" * 1000}).status_code == 413
    chunks = (b"#" * 600 for _ in range(3))
    assert http.post(f"{url}/v1/run", content=chunks).status_code == 413


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_open_address_needs_tokens(host: str) -> None:
    with pytest.raises(ConfigurationError, match="give tokens"):
        run_service(ServiceConfig(provider="local"), host=host)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("alice", "line 1: write NAME SECRET"),
        ("# one\nalice " + "s" * 20 + " many", "line 2"),
        ("alice short", "'alice': give at least 16"),
        ("al:ce " + "s" * 20, "al:ce"),
        ("alice " + "s" * 20 + " 0", "quota=0"),
        ("# none", "no token"),
    ],
)
def test_a_wrong_file_of_tokens_is_named_without_its_secrets(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_tokens(path)
    assert named in str(caught.value)
    assert "s" * 20 not in str(caught.value)


def test_two_tokens_need_two_names(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# clients\nalice " + "s" * 20 + " 5\nbob " + "t" * 20 + "\n")
    alice, bob = read_tokens(path)
    assert (alice.name, alice.quota, bob.quota) == ("alice", 5, None)
    assert "s" * 20 not in repr(alice)
    with pytest.raises(ConfigurationError, match="two tokens are named 'alice'"):
        ServiceConfig(tokens=(alice, alice))
