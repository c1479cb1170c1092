"""Each answer of an API server and each state of a pod is the error that ANSWERS.md says."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandboxkit import errors
from sandboxkit.errors import SandboxError, SandboxTerminatedError
from sandboxkit.integrations.rewards._boundary import Phase, verdict_of
from sandboxkit.integrations.rewards._verdict import Outcome
from sandboxkit.providers import kubernetes
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of
from sandboxkit.providers.kubernetes._watch import PodStatus
from tests.emulators._answers import Row, compare, is_raised
from tests.kubernetes.answers import answering, status

pytestmark = pytest.mark.anyio

# Any, here and below: TOML.
_RECORDED: dict[str, list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("refusals.toml").read_text()
)


def _row(each: dict[str, Any]) -> Row:
    """The line in the document of a refusal, or of a state."""
    raised = getattr(errors, each["raised"]) if "raised" in each else None
    if "when" in each:
        words = each["words"] + (", `out_of_memory`" if each.get("out_of_memory") else "")
        return Row((each["when"],), words, raised)
    headers = "".join(f" `{name}: {value}`" for name, value in each.get("headers", {}).items())
    answer = f"{each['status']} {each['reason']}".strip()
    text = f"{answer}{headers}: `{each['message']}`"
    return Row(tuple(each["calls"]), text, raised, each.get("retry_after"))


async def _watched(api: Api) -> None:
    async with api.watch(await api.path("pods"), "0"):
        pass


@pytest.mark.parametrize(
    ("call", "refused"),
    [(call, refused) for refused in _RECORDED["refusals"] for call in refused["calls"]],
    ids=lambda each: each if isinstance(each, str) else f"{each['status']}-{each['reason']}",
)
async def test_a_refusal_is_the_error_of_the_table(
    tmp_path: Path, call: str, refused: dict[str, Any]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if refused["reason"]:
            details = refused.get("details", {})
            said = status(refused["status"], refused["reason"], refused["message"], details=details)
        else:
            said = web.Response(status=refused["status"], text=refused["message"] + "x" * 5000)
        said.headers.update(refused.get("headers", {}))
        return said

    async with answering(answer, tmp_path) as (_, api):
        pods, pod = await api.path("pods"), await api.path("pods", "x")
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: api.call("POST", pods, {}, what="create a sandbox", sandbox_id="x"),
            "get": lambda: api.call("GET", pod, what="describe a sandbox", sandbox_id="x"),
            "list": lambda: api.call("GET", pods, what="list pods"),
            "delete": lambda: api.call("DELETE", pod, what="remove a sandbox", sandbox_id="x"),
            "watch": lambda: _watched(api),
            "exec": lambda: api.exec("x", "sandbox", ["true"], sandbox_id="x"),
        }
        with pytest.raises(SandboxError) as caught:
            await calls[call]()
    assert is_raised(caught.value, _row(refused)), repr(caught.value)
    assert refused.get("words", "") in str(caught.value)
    assert len(str(caught.value)) < 1000
    refusal = refusal_of(caught.value)
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (refused["status"], refused["reason"])


@pytest.mark.parametrize(
    "state", _RECORDED["states"], ids=lambda state: f"{state['when']}-{state['words'][:40]}"
)
def test_a_state_is_the_error_of_the_table(state: dict[str, Any]) -> None:
    pod = {"metadata": {"name": "pod"}, "spec": {"nodeName": "n"}} | json.loads(
        state.get("pod", "{}")
    )
    seen = PodStatus(pod | {"status": json.loads(state["status"])})
    told = json.loads(state.get("events", "[]"))
    made: dict[str, Callable[[], SandboxError | None]] = {
        "start": lambda: _ends.start_error(seen, told),
        "deadline": lambda: _ends.late_error(seen, told, seconds=1),
        "end": lambda: _ends.end_error(
            seen, told, sandbox_id="pod", reason=state.get("reason", "")
        ),
    }
    error = made[state["when"]]()
    assert is_raised(error, _row(state)), repr(error)
    if error is not None:
        assert all(part in str(error) for part in state["words"].split(" … "))
        assert error.sandbox_id == "pod"
    assert getattr(error, "out_of_memory", False) == state.get("out_of_memory", False)
    if isinstance(error, SandboxTerminatedError):
        assert not error.by_command
        outcome = Outcome.OOM if error.out_of_memory else Outcome.INFRA_ERROR
        assert verdict_of(error, Phase.GRADED).outcome is outcome


def test_the_document_says_so() -> None:
    recorded = [*_RECORDED["refusals"], *_RECORDED["states"]]
    compare(Path(str(kubernetes.__file__)).resolve().with_name("ANSWERS.md"), map(_row, recorded))


def test_a_pod_that_nobody_knows_was_ended_with_its_agent() -> None:
    assert "its agent was killed" in str(_ends.end_error(None, sandbox_id="pod"))


def test_a_gate_without_a_queue_is_named() -> None:
    spec = {"schedulingGates": [{"name": "example.com/budget"}]}
    pod = {"metadata": {"name": "pod"}, "spec": spec, "status": {"phase": "Pending"}}
    waits = "pod waits: it is not admitted yet by example.com/budget"
    assert _ends.wait_of(PodStatus(pod)) == waits
