"""The pages that notebooks show for operations, results and sandboxes."""

from collections.abc import Mapping
from datetime import UTC, datetime

from sandboxkit import _tags
from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit._sandbox import Sandbox
from sandboxkit._snapshot import Snapshot
from sandboxkit.display import Displayable, page_of
from sandboxkit.display.page import Page
from sandboxkit.errors import SandboxError
from sandboxkit.types import Ending, ProcessResult, SandboxInfo, SandboxState, SnapshotInfo

RESPONSE_SECONDS = 2.0
"""How long (s) a notebook waits for a backend to report a sandbox's status."""
_STATES = {
    SandboxState.RUNNING: "good",
    SandboxState.STARTING: "open",
    SandboxState.PAUSED: "open",
    SandboxState.STOPPED: "plain",
}


@page_of.register
def _result(result: ProcessResult) -> Page:
    ending = result.ending or Ending.EXITED
    summary = f"status {result.returncode}"
    if ending is not Ending.EXITED:
        summary += f", {ending.value.replace('_', ' ')}"
    rows = {"argv": " ".join(result.argv), "seconds": f"{result.duration:.3g}"}
    if result.usage.peak_memory_bytes is not None:
        rows["peak memory"] = f"{result.usage.peak_memory_bytes / 2**20:.1f} MiB"
    if result.truncated:
        rows["truncated"] = "the middle of the output was dropped"
    texts = {"stdout": result.stdout, "stderr": result.stderr}
    return Page("ProcessResult", summary, "bad" if result.returncode else "good", rows, texts)


@page_of.register
def _info(info: SandboxInfo) -> Page:
    more = {} if info.image is None else {"image": info.image}
    return Page("SandboxInfo", info.state.value, _STATES[info.state], _rows(info, more))


@page_of.register
def _snapshot_info(info: SnapshotInfo) -> Page:
    size = "unknown" if info.bytes is None else f"{info.bytes / 2**20:.1f} MiB"
    more = {"kind": info.kind, "size": size}
    if info.name is not None:
        more["name"] = info.name
    return Page("Snapshot", info.name or "stored", "plain", _rows(info, more))


@page_of.register
def _snapshot(snapshot: Snapshot) -> Page:
    return _snapshot_info(snapshot.info)


@page_of.register
def _sandbox(sandbox: Sandbox) -> Page:
    own = {"id": sandbox.id or "none yet", "provider": sandbox.provider_name}
    if sandbox.id is None or sandbox._life.stopped:
        summary = "stopped" if sandbox._life.stopped else "not started"
        return Page("Sandbox", summary, "plain", own | {"tags": _tags_text(sandbox.spec.tags)})
    try:
        status = sandbox.status()
        try:
            found = _info(status.result(RESPONSE_SECONDS))
        finally:
            status.cancel()
    except (SandboxError, TimeoutError, RuntimeError) as error:
        why = str(error) or f"no answer within {RESPONSE_SECONDS:g} s"
        return Page("Sandbox", "unknown", "open", own | {"why": why})
    return Page("Sandbox", found.headline, found.mood, found.rows)


@page_of.register
def _operation(operation: Operation) -> Page:  # type: ignore[type-arg] # dispatched on at run time
    kind = type(operation).__name__
    rows = {"argv": " ".join(operation.argv)} if isinstance(operation, Process) else {}
    if not operation.done():
        return Page(kind, "running", "open", rows)
    if operation.cancelled():
        return Page(kind, "cancelled", "plain", rows)
    if (error := operation.exception()) is not None:
        rows["error"] = f"{type(error).__name__}: {error}"
        return Page(kind, "failed", "bad", rows)
    result = operation.result()
    if isinstance(result, Displayable):
        inner = result._page()
        return Page(kind, inner.headline, inner.mood, inner.rows, inner.texts)
    return Page(kind, f"done, its result is of type {type(result).__name__}", "good", rows)


def _rows(info: SandboxInfo | SnapshotInfo, more: Mapping[str, str]) -> dict[str, str]:
    rows = {"id": info.id, "provider": info.provider, **more, "tags": _tags_text(info.tags)}
    if info.expires_at is not None:
        rows["time left"] = _left(info.expires_at)
    return rows


def _tags_text(tags: Mapping[str, str]) -> str:
    own = _tags.public(tags)
    return ", ".join(f"{name}:{value}" if value else name for name, value in own.items())


def _left(expires_at: datetime) -> str:
    now = datetime.now(UTC)
    if expires_at.tzinfo is None:
        now = now.replace(tzinfo=None)
    seconds = round((expires_at - now).total_seconds())
    if seconds <= 0:
        return "none"
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    days, hours = divmod(hours, 24)
    parts = {"d": days, "h": hours, "min": minutes, "s": seconds}
    shown = [f"{number} {unit}" for unit, number in parts.items() if number]
    return " ".join(shown[:2])
