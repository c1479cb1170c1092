"""One client costs the others neither time nor memory, whatever it sends, takes or leaves half done."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from benchmarks.serve_strangers import ATTACKS, request_of, run
from sandboxkit.integrations.serve import Token, _server, _workers
from sandboxkit.integrations.serve._fair_room import FairRoom
from sandboxkit.testing.conformance._base import until
from tests.serve.conftest import Serve, replica, sending, whole
from tests.serve.graders import Held, Mortal
from tests.serve.test_bounds import bearer
from tests.serve.test_grading import graded

ALICE, STRANGER = Token("alice", "a" * 20), Token("stranger", "s" * 20, quota=2)
BOTH = (ALICE, STRANGER)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with replica(provider="local", pool=1, tokens=BOTH) as url:
        yield url


REFUSED = {name: attack["refused"] for name, attack in ATTACKS.items() if "refused" in attack}


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_long_to_check_is_refused_by_its_field(url: str, name: str) -> None:
    with sending(url, request_of(ATTACKS[name])) as connection:
        answer = whole(connection)
    assert answer.startswith("HTTP/1.1 422")
    assert REFUSED[name] in answer


def test_small_chunks_end_their_connection(url: str) -> None:
    attack = request_of(ATTACKS["small_chunks"])[:100_000]
    with suppress(ConnectionResetError), sending(url, attack) as connection:
        assert whole(connection) == ""


def test_a_large_body_is_answered_like_a_small_one(url: str, http: httpx.Client) -> None:
    for padding in ("", "#" * 100_000):
        body = {"code": f"print(6 * 7){padding}"}
        answer = http.post(f"{url}/v1/run", json=body, headers=bearer(ALICE))
        assert answer.json()["stdout"] == "42\n"
        wrong = http.post(f"{url}/v1/run", json={"cod": padding, **body}, headers=bearer(ALICE))
        assert wrong.status_code == 422
        assert wrong.json()["detail"][0]["loc"] == ["body", "cod"]


def test_a_large_task_is_graded_like_a_small_one(url: str, http: httpx.Client) -> None:
    numbers = list(range(3000))
    task = {"test_list": [f"assert f() == {numbers}"]}
    body = {"task": task, "submissions": ["def f(): return list(range(3000))", "def f(): return 1"]}
    answer = http.post(f"{url}/v1/grade", json=body, headers=bearer(ALICE))
    assert [line["reward"] for line in graded(answer)] == [1.0, 0.0]


def test_what_takes_too_long_to_check_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_SECONDS", 0.01)
    with sending(url, request_of(ATTACKS["one_test_of_many_comparisons"])) as connection:
        assert "could not be read and checked" in whole(connection)


def test_reads_that_nobody_takes_count_against_the_quota_and_end(
    url: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(STRANGER)
    made = http.post(f"{url}/v1/sandboxes", json={}, headers=headers).json()["id"]
    fill = {"argv": ["sh", "-c", "head -c 32000000 /dev/zero > /workspace/big"]}
    http.post(f"{url}/v1/sandboxes/{made}/exec", json=fill, headers=headers)
    file = f"/v1/sandboxes/{made}/files?path=/workspace/big"
    get = request_of({"line": f"GET {file}", "text": ""})
    with sending(url, get) as first, sending(url, get) as second:
        assert [len(each.recv(100)) for each in (first, second)] == [100, 100]
        assert http.get(f"{url}{file}", headers=headers).status_code == 429
    until(lambda: "sandboxkit_admitted 0.0" in http.get(f"{url}/metrics").text, "they end", 60)
    assert len(http.get(f"{url}{file}", headers=headers).content) == 32_000_000
    monkeypatch.setattr(_server, "_BODY_SECONDS", 0.2)
    with sending(url, get) as taken_by_nobody:
        taken_by_nobody.recv(100)
        until(lambda: "sandboxkit_admitted 0.0" in http.get(f"{url}/metrics").text, "it ends", 60)
    http.delete(f"{url}/v1/sandboxes/{made}", headers=headers)


def test_unfinished_bodies_count_against_a_limit(serve: Serve) -> None:
    url = serve(provider=Mortal(), grader=Held(), tokens=BOTH, max_body=100_000, queue=1)
    attack = request_of({"line": "POST /v1/run", "text": "[" * 90_000, "length": 100_000})
    with ExitStack() as stack:
        made = [stack.enter_context(sending(url, attack)) for _ in range(3)]
        answers = set()
        for each in made:
            each.settimeout(0.5)
            with suppress(TimeoutError):
                answers.add(each.recv(12))
        assert answers == {b"HTTP/1.1 429"}
        answer = httpx.get(f"{url}/v1/sandboxes", headers=bearer(ALICE))
        assert answer.status_code == 200


def test_one_client_cannot_fill_the_queue_of_another(serve: Serve, http: httpx.Client) -> None:
    grader = Held()
    url = serve(provider=Mortal(), grader=grader, tokens=(ALICE, Token("bob", "b" * 20)), queue=4)
    body = {"task": {}, "submissions": ["right"] * 4}
    full = request_of({"line": "POST /v1/grade", "text": json.dumps(body)})
    with sending(url, full.replace(STRANGER.secret.encode(), b"b" * 20)):
        until(lambda: grader.begun == 4, "the queue is full", 60)
        grader.let_go = True
        body["submissions"] = ["right"] * 2
        assert http.post(f"{url}/v1/grade", json=body, headers=bearer(ALICE)).status_code == 200


@pytest.mark.anyio
async def test_a_free_place_goes_to_the_client_that_holds_the_fewest() -> None:
    room, got, ends = FairRoom(2), list[str](), dict[str, asyncio.Event]()

    async def work(name: str) -> None:
        ends[name] = asyncio.Event()
        async with room.place(name[0]):
            got.append(name)
            await ends[name].wait()

    async def settled() -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return got

    async with asyncio.TaskGroup() as group:
        names = ("a1", "a2", "a3", "a4", "b1", "b2")
        tasks = {name: group.create_task(work(name)) for name in names}
        assert await settled() == ["a1", "a2", "b1"], "who has none waits for nobody"
        tasks["a3"].cancel()
        ends["a1"].set()
        ends["a2"].set()
        assert await settled() == ["a1", "a2", "b1", "a4"]
        ends["b1"].set()
        assert await settled() == ["a1", "a2", "b1", "a4", "b2"]
        ends["a4"].set()
        ends["b2"].set()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_strangers_neither_slow_nor_fail_an_honest_client() -> None:
    siege = run(600, seed=1)
    assert not siege.failed, (siege.p99, siege.errors)
    assert all(siege.attacks.values())
