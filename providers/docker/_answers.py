"""Reads the Docker daemon's answers: lists, inspections, ends of removals, and why a container died."""

import time
from datetime import UTC, datetime
from typing import Any

from sandboxkit.providers import _gvisor
from sandboxkit.providers.docker import _container
from sandboxkit.types import SandboxInfo


# Any: the daemon's answers are untyped. An answer of an unexpected form fails within Daemon.call.
def listed(answer: Any) -> list[SandboxInfo | None]:
    if not isinstance(answer, list):
        raise TypeError(f"no list, but {answer!r:.100}")
    return [_one_listed(item) for item in answer]


def _one_listed(item: Any) -> SandboxInfo | None:
    """Describe one container of a list; None if it is no sandbox or is being removed."""
    names = [name.removeprefix("/") for name in item.get("Names") or ()]
    name = next((name for name in names if _container.ID_PATTERN.fullmatch(name)), None)
    if name is None or item.get("State") == "removing":
        return None
    return _container.sandbox_info(
        name,
        str(item.get("State")),
        item.get("Labels") or {},
        str(item.get("Image")),
        datetime.fromtimestamp(int(item.get("Created") or 0), UTC),
    )


def described(sandbox_id: str, answer: Any) -> SandboxInfo | None:
    """Describe an inspected container; None if it is no sandbox or is being removed."""
    labels: dict[str, str] = answer["Config"].get("Labels") or {}
    state = str(answer["State"]["Status"])
    if labels.get(_container.MARKER) != "1" or state == "removing":
        return None
    # fromisoformat does not accept nanoseconds.
    created = datetime.fromisoformat(str(answer["Created"])[:19]).replace(tzinfo=UTC)
    image = str(answer["Config"].get("Image"))
    return _container.sandbox_info(sandbox_id, state, labels, image, created)


def agent_socket(answer: Any) -> str:
    """Return the address of the agent's socket in an inspected container."""
    folders = answer["HostConfig"].get("Tmpfs") or {}
    return _gvisor.SOCKET if _gvisor.SOCKET_FOLDER in folders else _container.AGENT_SOCKET


def is_gone(answer: Any) -> bool:
    """Whether the wait for a removal ended with the container removed, not with an error."""
    return isinstance(answer["StatusCode"], int) and not answer.get("Error")


_TOGETHER_NS = 2_000_000_000
KILLED = "its agent was killed (exit status"
_BY_SIGNAL = (137, 143)
"""Exit statuses of a container that SIGKILL or SIGTERM ended."""
OUT_OF_MEMORY = "it ran out of memory; raise memory_mb"


def ended_itself(reason: str) -> bool:
    """Whether `last_words` found that a container's first process ended, and that no signal ended it."""
    return reason.startswith(KILLED) and not reason.endswith(tuple(f" {n})" for n in _BY_SIGNAL))


def last_words(api: Any, sandbox_id: str) -> str:
    """Return why a container died, according to the daemon's recent events."""
    now = time.time()
    events = api.events(
        since=f"{now - 60:.3f}",
        until=f"{now + 0.3:.3f}",  # the stream may end before the event is recorded
        filters={"container": sandbox_id, "event": ["oom", "die", "kill"]},
        decode=True,
    )
    seen = {event["Action"]: event for event in events}
    if "die" not in seen:
        return "the connection to it broke"
    died = seen["die"]
    if "kill" in seen:
        signal = seen["kill"]["Actor"]["Attributes"].get("signal", "?")
        return f"its agent was killed through Docker, with signal {signal}"
    # An older OOM event is that of a single command, which the sandbox survived.
    if "oom" in seen and abs(seen["oom"]["timeNano"] - died["timeNano"]) < _TOGETHER_NS:
        return OUT_OF_MEMORY
    return f"{KILLED} {died['Actor']['Attributes'].get('exitCode')})"
