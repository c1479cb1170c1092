"""What one client may not do to another or to the service: keys, quotas, looks without a token, odd JSON."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandboxkit.integrations.serve import ServiceConfig, create_app, read_tokens
from sandboxkit.integrations.serve._job import Job, Jobs
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Diagnosis
from tests.data_here import beside
from tests.serve.graders import Held
from tests.serve.test_bounds import ALICE, BOB, bearer

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


class Looked(FakeProvider):
    """Counts its diagnoses, each of which takes a moment."""

    looks = 0

    async def diagnose(self) -> Diagnosis:
        Looked.looks += 1
        await asyncio.sleep(0.05)
        return await super().diagnose()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with tokens."""
    app = create_app(ServiceConfig(provider=Looked(), tokens=(ALICE, BOB), grader=Held()))
    async with app.router.lifespan_context(app):
        # A traceback of the service would be raised here.
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client


@pytest.mark.parametrize(("path", "body", "named"), beside(__file__, "requests.toml")["unsayable"])
async def test_what_json_cannot_say_is_refused_with_its_field(
    client: httpx.AsyncClient, path: str, body: str, named: str
) -> None:
    body = body.replace("DEEP", "[" * 900 + "]" * 900)
    answer = await client.post(path, content=body, headers=JSON | bearer(ALICE))
    assert answer.status_code == 422
    assert named in str(answer.json()["detail"])


async def test_another_clients_sandbox_and_none_are_answered_alike(
    client: httpx.AsyncClient,
) -> None:
    made = await client.post("/v1/sandboxes", json={}, headers=bearer(ALICE))
    own = made.json()["id"]
    answers = [
        await client.get(f"/v1/sandboxes/{each}", headers=bearer(BOB)) for each in (own, "none")
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(own, "none") == answers[1].text


async def test_many_looks_without_a_token_are_one(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looked, "looks", 0)
    answers = await asyncio.gather(*(client.get("/readyz") for _ in range(30)))
    assert {answer.status_code for answer in answers} == {200}
    assert Looked.looks == 1


async def test_keys_of_one_client_push_out_none_of_another_nor_work_that_runs() -> None:
    jobs, go_on, done = Jobs[int](lambda _: True), asyncio.Event(), [0]

    async def held() -> AsyncGenerator[int, None]:
        await go_on.wait()
        yield 1

    async def quick() -> AsyncGenerator[int, None]:
        yield 2

    def ended() -> None:
        done[0] += 1

    first = jobs.get("alice", "a", b"", lambda: Job(quick(), ended))
    running = jobs.get("bob", "running", b"", lambda: Job(held(), ended))
    oldest = jobs.get("bob", "oldest", b"", lambda: Job(quick(), ended))
    for number in range(300):
        job = jobs.get("bob", str(number), b"", lambda: Job(quick(), ended))
        assert [each async for each in job.follow()] == [2]
    assert jobs.get("alice", "a", b"", lambda: Job(quick(), ended)) is first
    assert jobs.get("bob", "running", b"", lambda: Job(quick(), ended)) is running
    assert jobs.get("bob", "oldest", b"", lambda: Job(quick(), ended)) is not oldest
    go_on.set()
    assert [each async for each in running.follow()] == [1]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_a_token_file_that_others_may_read_is_warned_about(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {ALICE.secret}\n")
    file.chmod(mode)
    with caplog.at_level(logging.WARNING):
        read_tokens(file)
    assert ("chmod 600" in caplog.text) is (mode != 0o600)
