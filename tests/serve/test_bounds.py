"""What the service refuses: strangers, too much work, too long bodies, open addresses."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve import ServiceConfig, Token, read_tokens
from sandboxkit.integrations.serve import serve as run_service
from sandboxkit.integrations.serve._bodies import check_task
from sandboxkit.testing.conformance._base import until
from tests.data_here import beside
from tests.serve.conftest import Serve, replica
from tests.serve.graders import Held, Mortal

GIVEN = beside(__file__, "requests.toml")
ALICE, BOB = Token("alice", "a" * 20, quota=2), Token("bob", "b" * 20)
BODY = {"task": {}, "submissions": ["right"]}


def bearer(token: Token) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.secret}"}


@pytest.mark.parametrize("sent", GIVEN["strangers"])
def test_a_request_without_a_valid_token_is_refused(
    tokened: str, http: httpx.Client, sent: str
) -> None:
    headers = {"Authorization": sent} if sent else {}
    for path in ("/v1/grade", "/v1/run", "/run_code", "/slime", "/v1/sandboxes"):
        for body in ({"code": "1", "language": "python"}, {}):
            answer = http.post(f"{tokened}{path}", json=body, headers=headers)
            assert answer.status_code == 401, path
    assert http.get(f"{tokened}/v1/sandboxes", headers=headers).status_code == 401


@pytest.fixture(scope="module")
def tokened() -> Iterator[str]:
    with replica(provider=Mortal(), grader=Held(), tokens=(ALICE, BOB)) as url:
        yield url


def ask(
    threads: ThreadPoolExecutor, url: str, grader: Held, submissions: int, token: Token
) -> "Future[httpx.Response]":
    """Begin a request; return when the grader has begun all of its submissions."""
    begun = grader.begun + submissions
    body = {"task": {}, "submissions": ["right"] * submissions}
    headers = bearer(token)
    asked = threads.submit(httpx.post, f"{url}/v1/grade", json=body, headers=headers, timeout=120)
    until(lambda: grader.begun == begun, "its work has begun", 60)
    return asked


def test_a_client_past_its_quota_waits_and_others_do_not(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader, tokens=(ALICE, BOB))
    with ThreadPoolExecutor() as threads:
        hers = ask(threads, url, grader, 2, ALICE)
        refused = http.post(f"{url}/v1/grade", json=BODY, headers=bearer(ALICE))
        his = ask(threads, url, grader, 3, BOB)
        grader.let_go = True
        assert (hers.result().status_code, his.result().status_code) == (200, 200)
    assert refused.status_code == 429
    assert "the quota of 'alice' is full: 2 of 2" in refused.text
    assert int(refused.headers["retry-after"]) >= 1
    assert http.post(f"{url}/v1/grade", json=BODY, headers=bearer(ALICE)).status_code == 200


def test_a_full_service_asks_to_come_back(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader, tokens=(BOB,), queue=3, pool=0)
    fusion = {"code": "1", "language": "python"}
    with ThreadPoolExecutor() as threads:
        his = ask(threads, url, grader, 3, BOB)
        refused = http.post(f"{url}/v1/run", json={"code": "1"}, headers=bearer(BOB))
        late = http.post(f"{url}/run_code", json=fusion, headers=bearer(BOB))
        grader.let_go = True
        assert his.result().status_code == 200
    assert (refused.status_code, late.status_code) == (429, 504)
    assert "the service is full: 3 of 3" in refused.text


def test_a_request_larger_than_the_queue_is_admitted_alone(
    serve: Serve, http: httpx.Client
) -> None:
    grader = Held()
    grader.let_go = True
    url = serve(provider=Mortal(), grader=grader, queue=2)
    body = {**BODY, "submissions": ["right"] * 5}
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


@pytest.mark.parametrize(("text", "named"), GIVEN["wrong_tokens"])
def test_a_wrong_file_of_tokens_is_named_without_its_secrets(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_tokens(tmp_path / "tokens")
    assert named in str(caught.value)
    assert "s" * 20 not in str(caught.value)


def test_two_tokens_need_two_names_and_two_secrets(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# clients\nalice " + "s" * 20 + " 5\nbob " + "t" * 20 + "\n")
    alice, bob = read_tokens(path)
    assert (alice.name, alice.quota, bob.quota) == ("alice", 5, None)
    assert "s" * 20 not in repr(alice)
    with pytest.raises(ConfigurationError, match="two tokens are named 'alice'"):
        ServiceConfig(tokens=(alice, alice))
    with pytest.raises(ConfigurationError, match="'alice' and 'eve' have one secret") as raised:
        ServiceConfig(tokens=(alice, Token("eve", alice.secret)))
    assert alice.secret not in str(raised.value)


def test_cases_in_text_are_counted_like_others() -> None:
    cases = json.dumps([{"args": [], "expected": 0}] * 2001)
    with pytest.raises(ConfigurationError, match="cases has 2001 tests"):
        check_task({"cases": cases})
