"""Each answer of an API server and each state of a pod is the error that ANSWERS.md says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandboxkit.errors import (
    SandboxError,
)
from sandboxkit.providers import kubernetes
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of
from sandboxkit.providers.kubernetes._watch import PodStatus
from tests.emulators._answers import compare, is_raised
from tests.kubernetes.answers import answering, status
from tests.kubernetes.refusals import REFUSALS, STATES, Refused, State, rows

pytestmark = pytest.mark.anyio


async def _list(api: Api, resource: str = "pods") -> Any:
    return await api.call("GET", await api.path(resource), what=f"list {resource}")


async def _watched(api: Api) -> None:
    async with api.watch(await api.path("pods"), "0"):
        pass


@pytest.mark.parametrize(
    ("call", "refused"),
    [(call, refused) for refused in REFUSALS for call in refused.calls],
    ids=lambda each: each if isinstance(each, str) else f"{each.status}-{each.reason}",
)
async def test_a_refusal_is_the_error_of_the_table(
    tmp_path: Path, call: str, refused: Refused
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not refused.reason:
            return web.Response(status=refused.status, text=refused.message)
        message = status(refused.status, refused.reason, refused.message, details=refused.details)
        message.headers.update(refused.headers)
        return message

    async with answering(answer, tmp_path) as (_, api):
        pods, pod = await api.path("pods"), await api.path("pods", "x")
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: api.call("POST", pods, {}, what="create a sandbox", sandbox_id="x"),
            "get": lambda: api.call("GET", pod, what="describe a sandbox", sandbox_id="x"),
            "list": lambda: _list(api),
            "delete": lambda: api.call("DELETE", pod, what="remove a sandbox", sandbox_id="x"),
            "watch": lambda: _watched(api),
            "exec": lambda: api.exec("x", "sandbox", ["true"], sandbox_id="x"),
        }
        with pytest.raises(SandboxError) as caught:
            await calls[call]()
    assert is_raised(caught.value, refused.row), repr(caught.value)
    refusal = refusal_of(caught.value)
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (refused.status, refused.reason)


def _pod(status: dict[str, Any]) -> PodStatus:
    return PodStatus({"metadata": {"name": "pod"}, "spec": {"nodeName": "n"}, "status": status})


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state.when}-{state.words[:40]}")
def test_a_state_is_the_error_of_the_table(state: State) -> None:
    seen = _pod(state.status)
    errors: dict[str, Callable[[], SandboxError | None]] = {
        "start": lambda: _ends.start_error(seen),
        "deadline": lambda: _ends.late_error(seen, (), seconds=1),
        "end": lambda: _ends.end_error(seen, sandbox_id="pod"),
    }
    error = errors[state.when]()
    assert is_raised(error, state.row), repr(error)
    if error is not None:
        assert all(part in str(error) for part in state.words.split(" … "))
        assert error.sandbox_id == "pod"
    assert getattr(error, "out_of_memory", False) == state.out_of_memory


def test_the_document_says_so() -> None:
    compare(Path(str(kubernetes.__file__)).resolve().with_name("ANSWERS.md"), rows())
