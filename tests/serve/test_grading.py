"""Grading over HTTP: verdicts as they come, deadlines, clients that leave, failures of the backend."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sandboxkit.testing.conformance._base import until
from tests.data_here import beside
from tests.serve.conftest import Serve, asking
from tests.serve.graders import Held, Mortal, NeedsSandbox

GIVEN = beside(__file__, "requests.toml")
TASK = {"test_list": ["assert double(2) == 4"]}
RIGHT, WRONG = "def double(x): return 2 * x", "def double(x): return x"
SLEEPS = "import time\ntime.sleep(1000)\ndef double(x): return 2 * x"


def graded(answer: httpx.Response) -> list[dict[str, object]]:
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return sorted(lines, key=lambda line: line["index"])


def test_each_submission_gets_its_verdict(local: str, http: httpx.Client) -> None:
    body = {"task": TASK, "submissions": [RIGHT, WRONG, RIGHT]}
    lines = graded(http.post(f"{local}/v1/grade", json=body))
    assert [line["reward"] for line in lines] == [1.0, 0.0, 1.0]
    assert lines[0]["trust"] == "isolated"
    assert lines[1]["outcome"] == "failed"


def test_a_verdict_is_sent_before_the_slow_ones_are_known(local: str, http: httpx.Client) -> None:
    body = {"task": TASK, "submissions": [SLEEPS, RIGHT], "deadline": 8}
    with http.stream("POST", f"{local}/v1/grade", json=body) as answer:
        lines = answer.iter_lines()
        begun = time.monotonic()
        assert json.loads(next(lines))["index"] == 1
        assert json.loads(next(lines)) == {**GIVEN["late"], "reward": None}
        assert time.monotonic() - begun > 2


def test_the_code_of_a_completion_is_extracted_on_request(local: str, http: httpx.Client) -> None:
    submissions = [f"Here:\n```python\n{RIGHT}\n```", "none"]
    body = {"task": TASK, "submissions": submissions, "extract": True}
    lines = graded(http.post(f"{local}/v1/grade", json=body))
    assert [line["reward"] for line in lines] == [1.0, 0.0]


@pytest.mark.parametrize(("body", "named"), GIVEN["ungradable"])
def test_a_request_that_cannot_be_graded_names_what_is_wrong(
    local: str, http: httpx.Client, body: object, named: str
) -> None:
    answer = http.post(f"{local}/v1/grade", json=body)
    assert answer.status_code == 422
    assert named in answer.text


def test_slime_gets_a_number(local: str, http: httpx.Client) -> None:
    body = {"prompt": "p", "response": f"```python\n{RIGHT}\n```", "label": json.dumps(TASK)}
    assert http.post(f"{local}/slime", json=body).json() == 1.0
    body["response"] = "nothing"
    assert http.post(f"{local}/v1/score", json=body).json() == 0.0


def test_no_submission_becomes_0_when_the_backend_dies(serve: Serve, http: httpx.Client) -> None:
    provider = Mortal()
    url = serve(provider=provider, grader=NeedsSandbox())
    body = {"task": {}, "submissions": ["a", "b"]}
    assert [line["reward"] for line in graded(http.post(f"{url}/v1/grade", json=body))] == [1, 1]
    provider.dead = True
    lines = graded(http.post(f"{url}/v1/grade", json=body))
    assert [line["reward"] for line in lines] == [None, None]
    score = http.post(f"{url}/slime", json={"response": "```\nx\n```", "label": {}})
    assert score.status_code == 503
    assert "the daemon died" in score.text
    assert score.headers["retry-after"]


def test_a_client_that_leaves_cancels_its_work(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader)
    body = {"task": {}, "submissions": ["right"] * 3}
    with asking(f"{url}/v1/grade", body):
        until(lambda: grader.begun == 3, "its work has begun", 60)
    until(lambda: grader.cancelled == 3, "its work is cancelled", 60)
    assert grader.begun == 3
    until(lambda: "sandboxkit_admitted 0.0" in http.get(f"{url}/metrics").text, "it ends", 60)


def test_a_repeated_request_with_the_same_key_is_graded_once(
    serve: Serve, http: httpx.Client
) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader)
    body = {"task": {}, "submissions": ["right", "wrong"]}
    keys = {"Idempotency-Key": "step-1"}

    def ask() -> list[object]:
        answer = httpx.post(f"{url}/v1/grade", json=body, headers=keys, timeout=120)
        return [line["reward"] for line in graded(answer)]

    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(ask) for _ in range(3)]
        until(lambda: grader.begun > 0, "its work has begun", 60)
        grader.let_go = True
    assert [*(each.result() for each in asked), ask()] == [[1, 0]] * 4  # afterwards as well
    assert grader.begun == 2
    other = http.post(f"{url}/v1/grade", json={**body, "submissions": ["x"]}, headers=keys)
    assert other.status_code == 422
    assert "step-1" in other.text


def test_a_failure_of_the_backend_is_not_kept_under_a_key(serve: Serve, http: httpx.Client) -> None:
    provider = Mortal()
    url = serve(provider=provider, grader=NeedsSandbox())
    body, keys = {"task": {}, "submissions": ["a"]}, {"Idempotency-Key": "k"}
    provider.dead = True
    assert graded(http.post(f"{url}/v1/grade", json=body, headers=keys))[0]["reward"] is None
    provider.dead = False
    assert graded(http.post(f"{url}/v1/grade", json=body, headers=keys))[0]["reward"] == 1.0
