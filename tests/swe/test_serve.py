"""The server, over real HTTP on loopback."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxkit import Session
from sandboxkit.integrations.swe import SweConfig, bundled_tasks
from sandboxkit.integrations.swe.serve import SweServer, serving
from tests.data_here import beside


@pytest.fixture
def url() -> Iterator[str]:
    with Session("local") as session:
        server = SweServer(("127.0.0.1", 0), session, bundled_tasks(), SweConfig(), max_episodes=1)
        with serving(server) as url:
            yield url


# Any: JSON.
def send(url: str, value: object | None = None) -> tuple[int, Any]:
    data = None if value is None else json.dumps(value).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_an_episode_over_http(url: str) -> None:
    assert send(f"{url}/health") == (200, {"status": "healthy"})
    task = bundled_tasks()["parse_logs"]
    _, first = send(f"{url}/reset", {"task_id": task.id})
    assert first["observation"]["text"] == task.instruction
    episode = first["episode_id"]
    assert send(f"{url}/state")[1]["episodes"] == [episode]
    status, refused = send(f"{url}/reset", {"task_id": task.id})
    assert (status, refused["error"][:21]) == (400, "1 episodes are runnin")
    script = (task.tests.parent / "solution" / "solve.sh").read_text()
    action: dict[str, object] = {"tool": "bash", "arguments": {"command": script}}
    _, step = send(f"{url}/step", {"episode_id": episode, "action": action})
    assert (step["done"], step["reward"]) == (False, None)
    action = {"tool": "submit", "arguments": {}}
    _, end = send(f"{url}/step", {"episode_id": episode, "action": action})
    assert (end["done"], end["reward"], end["verdict"]) == (True, 1.0, "passed")
    assert send(f"{url}/step", {"episode_id": episode, "action": action})[0] == 400


@pytest.mark.parametrize(("path", "body", "status", "says"), beside(__file__)["bad"])
def test_bad_requests_fail(url: str, path: str, body: object, status: int, says: str) -> None:
    got, answer = send(url + path, body)
    assert got == status
    assert says in answer["error"]
    assert send(f"{url}/state")[1]["episodes"] == []
