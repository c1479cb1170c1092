"""Finds out from a pod's state and events why it does not start or has ended; returns the error."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import anyio

from sandboxkit.errors import (
    CapacityError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._snapshot_image import SNAPSHOT_CONTAINER
from sandboxkit.providers.kubernetes._watch import Pod, PodStatus

Event = Mapping[str, Any]

_CONTAINER = "sandbox"
_EVENTS_SECONDS = 5.0
_LONGEST = 500
_KILLED = 137
"""The exit status after SIGKILL, which the kernel's OOM killer sends, too."""

_PULL_SECRET = (
    "kubectl create secret docker-registry NAME -n {} --docker-server=HOST --docker-username=USER "
    "--docker-password=PASSWORD"
)
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_NO_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_NO_START = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)

# Messages of registries and runtimes for an image that we may not pull, or that is missing.
_DENIED = re.compile(
    r"denied|unauthorized|forbidden|authorization failed|insufficient_scope|no basic auth",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"not found|manifest unknown|does not exist|name unknown|no such host|no match for platform"
    rf"|invalid reference|{_DENIED.pattern}",
    re.IGNORECASE,
)
# Transient causes: the node is slow, or does not have everything that the pod needs yet.
_PASSING = re.compile(
    r"timed out|timeout|deadline exceeded|is reserved for|failed to sync|connection refused|connection reset"
    r"|unavailable|too many requests|error reading from server|transport is closing|ttrpc: closed"
    r"|context canceled|cannot start a stopped process",
    re.IGNORECASE,
)
# The node rejected the pod or preempted it: a new pod may fit on another node.
_NO_ROOM = re.compile(r"^(OutOf\w+|UnexpectedAdmissionError|NodeAffinity|Preempting)$")
_SCARCE = re.compile(r"Insufficient|Too many pods|free ports|exceed max volume", re.I)
# The kubelet's messages for a pod that exceeded its own disk limit.
_OWN_DISK = re.compile(
    r"exceed\w* (its local ephemeral storage limit|the total limit of containers|the limit \")"
    r"|Usage of EmptyDir volume",
    re.IGNORECASE,
)
# Permanent causes, although the node keeps retrying the start.
_NEVER = re.compile(
    r"memory limit too low|no runtime for|runtime handler .*not (found|supported)", re.I
)
_NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_NOISE = frozenset({"MissingClusterDNS", "DNSConfigForming", "FailedScheduling"})
_DELETERS = {
    "PreemptionByScheduler": "a pod of a higher priority preempted it",
    "DeletionByTaintManager": "its node was lost or drained",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "DeletionByPodGC": "its node was removed",
    "TerminationByKubelet": "its node lacked resources, or was shut down",
}
DELETED = "it was deleted"
_UNADMITTED = (
    "give start_timeout= the time that it may take; a ClusterQueue of Kueue needs quotas for cpu, memory and "
    "ephemeral-storage"
)
_DISPLACED = ("DisruptionTarget", "TerminationTarget")
"""Conditions of a pod that Kubernetes (since 1.26) or Kueue removes in favour of others."""
_NODE_ENDS = frozenset({"NodeShutdown", "Shutdown", "Terminated"})
"""Reasons of a pod's status when its node shuts down."""
_TELLING = frozenset(
    {"Evicted", "Preempted", "TaintManagerEviction", "NodeNotReady", "NodeShutdown", "Killing"}
)


async def events_of(api: Api, pod_name: str) -> list[Event]:
    """Return the pod's events, oldest first; an empty list if they are not available within 5 s."""
    query = {"fieldSelector": f"involvedObject.name={pod_name},involvedObject.kind=Pod"}
    with anyio.move_on_after(_EVENTS_SECONDS):
        try:
            path = await api.path("events")
            listed = await api.call("GET", path, what="list events", params=query)
            return sorted(listed.get("items") or (), key=_time_of)
        except SandboxError:
            pass  # events only add detail to an error message
    return []


def _time_of(event: Event) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def is_running(seen: PodStatus, container: str = _CONTAINER) -> bool:
    """Whether the container runs."""
    return not seen.gone and any(
        each.get("name") == container and "running" in (each.get("state") or {})
        for each in _status(seen.pod).get("containerStatuses") or ()
    )


def has_ended(seen: PodStatus) -> bool:
    """Whether the pod has finished, was deleted, or is being deleted."""
    return (
        seen.gone
        or "deletionTimestamp" in seen.pod["metadata"]
        or _status(seen.pod).get("phase") in ("Failed", "Succeeded")
        or any(
            container.get("name") == _CONTAINER and state == "terminated"
            for container, state, _ in _states(seen.pod)
        )
    )


def is_lost(seen: PodStatus) -> bool:
    """Whether the pod's node is unreachable. The node may return, together with the pod."""
    status = _status(seen.pod)
    if status.get("reason") == "NodeLost":
        return True
    ready = _conditions(seen.pod).get("Ready", {})
    # A pod that is not ready for a reason of its own has containers that are not ready.
    return (
        status.get("phase") == "Running"
        and ready.get("status") == "False"
        and _conditions(seen.pod).get("ContainersReady", {}).get("status") == "True"
    )


def start_error(seen: PodStatus, events: Sequence[Event] = ()) -> SandboxError | None:
    """Return why a pod will never start, or None while it still may. `events` add detail.

    The error is an ImageNotFoundError, a SandboxStartError, a CapacityError if its node had no room
    for it, or the cluster evicted or preempted it, or a ProviderUnavailableError if its node's
    containerd was interrupted.
    """
    pod = seen.pod
    name = str(pod["metadata"]["name"])

    def made(kind: type[SandboxError], reason_text: str) -> SandboxError:
        return kind(f"{name} did not start: {reason_text}", sandbox_id=name)

    status = _status(pod)
    for container, state, detail in _states(pod):
        reason, message = str(detail.get("reason") or ""), str(detail.get("message") or "")
        if state == "waiting":
            reason_text = f"{reason}: {_pull_words(events) or message}"
            if reason in _NO_IMAGE or (reason in _PULL and _MISSING.search(reason_text)):
                missing = "check its name"
                if container.get("name") == SNAPSHOT_CONTAINER:
                    missing = (
                        "if the registry has lost this snapshot's image, take the snapshot again"
                    )
                return made(
                    ImageNotFoundError,
                    f"image {container.get('image')!r}: {reason_text[:_LONGEST]}; {missing}. For a "
                    f"private one run `{_PULL_SECRET.format(pod['metadata'].get('namespace'))}` and give "
                    "image_pull_secrets=['NAME']",
                )
            if reason in _NO_START and not _PASSING.search(message):
                return made(SandboxStartError, f"{reason}: {message[:_LONGEST]}")
    if _NO_CLAIM.search(unscheduled := _unscheduled(pod)):
        return made(SandboxStartError, f"{unscheduled}; check storage_claim")
    if status.get("reason") and _NO_ROOM.search(str(status["reason"])):
        return made(CapacityError, f"{status['reason']}: {status.get('message', '')}")
    if has_ended(seen):
        kind: type[SandboxError] = SandboxStartError
        if _is_displaced(pod) or any(
            container.get("name") == SNAPSHOT_CONTAINER
            and "no space left" in str(detail.get("message"))
            for container, _, detail in _states(pod)
        ):
            kind = CapacityError
        elif any(
            detail.get("reason") in _NO_START and _PASSING.search(str(detail.get("message")))
            for *_, detail in _states(pod)
        ):
            kind = ProviderUnavailableError
        return made(kind, f"it ended at once: {_pod_text(seen, events)}")
    return None


def _is_displaced(pod: Pod) -> bool:
    """Whether the cluster ended the pod for reasons of its own: a new pod may start elsewhere."""
    status, conditions = _status(pod), _conditions(pod)
    if status.get("reason") == "Evicted":
        return not _OWN_DISK.search(str(status.get("message")))
    if status.get("reason") in _NODE_ENDS:
        return True
    return any(conditions.get(name, {}).get("status") == "True" for name in _DISPLACED)


def was_denied_once(seen: PodStatus, events: Sequence[Event]) -> bool:
    """Whether a pod with pull secrets waits for its image, whose first pull was denied.

    A node that does not know a secret yet pulls without it, and pulls again after 10 s.
    """
    waits = [detail for *_, detail in _states(seen.pod) if detail.get("reason") in _PULL]
    if not (waits and events and seen.pod["spec"].get("imagePullSecrets")):
        return False
    text = _pull_words(events) or str(waits[0].get("message"))
    failed = (event.get("count") or 1 for event in events if _is_failed_pull(event))
    return _DENIED.search(text) is not None and sum(failed) < 2


def late_error(seen: PodStatus | None, events: Sequence[Event], *, seconds: float) -> SandboxError:
    """Return why a pod has not started within `seconds`, its time limit.

    The error is a CapacityError if no node has room, a SandboxStartError if no node can ever run
    the pod, and a ProviderUnavailableError if a registry or node does not respond.
    """
    if seen is None:
        return ProviderUnavailableError(f"no event of a pod within {seconds:g} s")
    name = str(seen.pod["metadata"]["name"])
    certain = start_error(seen, events)
    if certain is not None:
        return certain

    kind: type[SandboxError] = ProviderUnavailableError
    if reason_text := _unscheduled(seen.pod):
        gated = _is_gated(seen.pod)
        kind = CapacityError if gated or _SCARCE.search(reason_text) else SandboxStartError
        reason_text += f"; {_UNADMITTED}" if gated else ""
    elif not seen.pod["spec"].get("nodeName"):
        reason_text = "no scheduler has looked at it"
    else:
        reason_text = _pod_text(seen, events)
        if _NEVER.search(reason_text):
            kind = SandboxStartError
    text = f"{name} did not start within {seconds:g} s: {reason_text}"
    return kind(text, sandbox_id=name)


def wait_of(seen: PodStatus) -> str:
    """Return what a pod's start waits for, in one line; "" if it has started or has a node."""
    if seen.gone or seen.pod["spec"].get("nodeName"):
        return ""
    text = _unscheduled(seen.pod)
    return f"{seen.pod['metadata']['name']} waits: {text}" if text else ""


def _unscheduled(pod: Pod) -> str:
    """Return why a pod has no node yet; "" if no scheduler said so."""
    if _is_gated(pod):
        labels = pod["metadata"].get("labels") or {}
        gates = ", ".join(
            str(each.get("name")) for each in pod["spec"].get("schedulingGates") or ()
        )
        queue = labels.get("kueue.x-k8s.io/queue-name")
        return f"it is not admitted yet by {f'the queue {queue!r}' if queue else gates}"
    scheduled = _conditions(pod).get("PodScheduled", {})
    if scheduled.get("status") != "False":
        return ""
    return f"{scheduled.get('reason')}: {scheduled.get('message', '')}"[:_LONGEST]


def _is_gated(pod: Pod) -> bool:
    scheduled = _conditions(pod).get("PodScheduled", {})
    return bool(pod["spec"].get("schedulingGates")) or scheduled.get("reason") == "SchedulingGated"


def end_error(
    seen: PodStatus | None, events: Sequence[Event] = (), *, sandbox_id: str, reason: str = ""
) -> SandboxTerminatedError:
    """Return why a sandbox ended; `reason` comes from its agent or its provider, if they know it.

    For DELETED, the conditions of a pod that was removed in favour of others say more.

    The error's `out_of_memory` is true only if the sandbox exceeded its own memory or disk limit.
    """
    over, reason_text = _own_excess(seen) if seen is not None else ("", "")
    if not over:
        words = {"lifetime": "its lifetime is over"}.get(reason, reason)
        if reason == DELETED and seen is not None and _is_displaced(seen.pod):
            words = ""  # the pod's conditions say who deleted it
        reason_text = words or (
            _pod_text(seen, events) if seen is not None else "its agent was killed"
        )
    text = f"sandbox {sandbox_id!r} ended: {over or reason_text}" + (
        f" ({reason_text})" if over else ""
    )
    return SandboxTerminatedError(text, sandbox_id=sandbox_id, out_of_memory=bool(over))


def _own_excess(seen: PodStatus) -> tuple[str, str]:
    """Return which of its own limits a sandbox exceeded, and the cluster's message; or two "".

    A node that is short of memory or disk also evicts and kills pods that stay within their limits.
    """
    status = _status(seen.pod)
    if status.get("reason") == "Evicted":
        message = str(status.get("message") or "")
        return ("it exceeded its disk limit", message) if _OWN_DISK.search(message) else ("", "")
    if status.get("reason"):
        return "", ""
    for container, state, detail in _states(seen.pod):
        # OOMKilled stays a container's reason once any of its processes was killed for memory, even
        # if a deletion is what ends the container later.
        if (
            container.get("name") == _CONTAINER
            and state == "terminated"
            and detail.get("reason") == "OOMKilled"
            and detail.get("exitCode") == _KILLED
            and not _deleted_before(seen.pod, detail)
        ):
            return "it exceeded its memory limit", "OOMKilled"
    return "", ""


def _deleted_before(pod: Pod, ended: Mapping[str, Any]) -> bool:
    """Whether the container ended after the pod's deletion was requested, to the second."""
    until = pod["metadata"].get("deletionTimestamp")
    if until is None:
        return False
    grace = timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    finished = ended.get("finishedAt")
    return finished is None or _time(finished) >= _time(until) - grace


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text))


def _pod_text(seen: PodStatus, events: Sequence[Event]) -> str:
    """Return the cluster's description of the pod's state and its three newest events."""
    return "; ".join(list(_statements(seen)) + _event_words(events)[-3:])[: 2 * _LONGEST]


def _statements(seen: PodStatus) -> Iterator[str]:
    pod, status = seen.pod, _status(seen.pod)
    conditions = _conditions(pod)
    if status.get("reason"):
        words = {"DeadlineExceeded": "its longest lifetime is over"}.get(status["reason"], "")
        yield words or f"{status['reason']}: {status.get('message', '')}"
    disrupted = conditions.get("DisruptionTarget")
    if disrupted is not None and disrupted.get("status") == "True":
        reason = str(disrupted.get("reason"))
        yield f"{_DELETERS.get(reason, reason)} ({disrupted.get('message', '')})"
    stopped = conditions.get("TerminationTarget")
    if (
        stopped is not None and stopped.get("status") == "True"
    ):  # set by Kueue before it deletes a pod
        yield f"its queue took the admission back ({stopped.get('message', '')})"
    for container, state, detail in _states(pod):
        if state == "terminated" and (detail.get("exitCode") or container["name"] == _CONTAINER):
            message = str(detail.get("message") or "").strip()[-_LONGEST:]
            code = detail.get("exitCode")
            yield f"{detail.get('reason')}, exit status {code}" + (
                f": {message}" if message else ""
            )
        elif state == "waiting" and detail.get("reason") != "ContainerCreating":
            yield f"{detail.get('reason')}: {str(detail.get('message') or '')[:_LONGEST]}"
    if is_lost(seen):
        yield "its node does not report"
    if seen.gone or "deletionTimestamp" in pod["metadata"]:
        yield DELETED
    elif status.get("phase") == "Pending":
        yield "its node has not started it"


def _event_words(events: Sequence[Event]) -> list[str]:
    words: list[str] = []
    for event in events:
        reason, message = str(event.get("reason")), str(event.get("message") or "")
        report = f"{reason}: {message[:_LONGEST]}"
        telling = event.get("type") == "Warning" and reason not in _NOISE
        if (telling or reason in _TELLING) and report not in words:
            words.append(report)
    return words


def _pull_words(events: Sequence[Event]) -> str:
    """Return the message of the newest failed pull; the state soon shows only "back-off"."""
    for event in reversed(events):
        if _is_failed_pull(event):
            return str(event["message"])
    return ""


def _is_failed_pull(event: Event) -> bool:
    return event.get("reason") == "Failed" and "pull" in str(event.get("message"))


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _conditions(pod: Pod) -> dict[str, Mapping[str, Any]]:
    return {str(each.get("type")): each for each in _status(pod).get("conditions") or ()}


def _states(pod: Pod) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """Yield for each container its status, the name of its state, and the state."""
    status = _status(pod)
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            for state, detail in (container.get("state") or {}).items():
                yield container, state, detail or {}
