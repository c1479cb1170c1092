"""The SandboxClaim that a sandbox is with `claims`: its manifest, and what its state says.

The kinds, fields and conditions are those of kubernetes-sigs/agent-sandbox, version v1beta1 of its API.
"""

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandboxkit.errors import ConfigurationError, SandboxError, SandboxStartError
from sandboxkit.providers.kubernetes import _pod, _tags
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState

# Any: manifests and the API server's responses are JSON.
Json = dict[str, Any]

_GROUP = "extensions.agents.x-k8s.io/v1beta1"
ROOT = f"/apis/{_GROUP}"
CLAIMS = ("sandboxclaims", ROOT)
_LEASE = f"{_tags.PREFIX}lease"
"""The annotation with the seconds for which an owner keeps its claim; a detached sandbox has none."""
_KEPT = 300
"""Seconds for which the controller keeps a claim whose pod has finished, so that its end can be explained."""
_AFTER = 2.0
"""Seconds for which a claim outlives its lifetime, so that the agent ends the commands and tells why."""
_MISSING = ("WarmPoolNotFound", "TemplateNotFound")
_FINAL = ("InvalidMetadata", "ClaimExpired", "SandboxExpired", "PodFailed", "PodSucceeded")
"""The reasons for which a claim is not ready and never will be."""


def manifest(name: str, spec: SandboxSpec, *, pool: str, lease: float, start: float) -> Json:
    """Return the claim for a spec that has passed `check`; `start` is how long (s) its start may take.

    Its labels stay on it: the controller passes only labels of its own domains on to pods.
    """
    metadata: Json = {
        "name": name,
        "labels": _tags.labels(spec.tags),
        "annotations": {
            _tags.ANNOTATION: _tags.annotation(spec.tags),
            **({} if spec.detach else {_LEASE: f"{lease:.0f}"}),
        },
    }
    made: Json = {
        "apiVersion": _GROUP,
        "kind": "SandboxClaim",
        "metadata": metadata,
        "spec": {"warmPoolRef": {"name": pool}},
    }
    change = changes(made, spec.lifetime, later=start)
    metadata["annotations"] |= change["metadata"]["annotations"]
    kept = {"shutdownPolicy": "Delete", "ttlSecondsAfterFinished": _KEPT}
    made["spec"] |= {"lifecycle": {**kept, **change["spec"]["lifecycle"]}}
    return made


def changes(claim: Mapping[str, Any], lifetime: float | None = None, *, later: float = 0.0) -> Json:
    """Return the merge patch that renews a claim's lease, and gives it a new lifetime (s) from now.

    The controller deletes the claim at its shutdownTime: the earlier end of lease and lifetime, and `later`
    seconds more. The agent ends the commands at the end of the lifetime.
    """
    annotations = claim["metadata"].get("annotations") or {}
    noted = {} if lifetime is None else {_pod.EXPIRES: _pod.expiry(lifetime)}
    ends = [float({**annotations, **noted}.get(_pod.EXPIRES, math.inf)) + _AFTER]
    if _LEASE in annotations:
        ends.append(time.time() + float(annotations[_LEASE]))
    end = min(ends) + later
    lifecycle = {} if end == math.inf else {"shutdownTime": _rfc3339(end)}
    return {"metadata": {"annotations": noted}, "spec": {"lifecycle": lifecycle}}


def info_of(claim: Mapping[str, Any], /) -> SandboxInfo | None:
    """Return the sandbox that a claim is; None if it is not one of ours or is being deleted."""
    metadata: Mapping[str, Any] = claim["metadata"]
    if (
        not _pod.ID_PATTERN.fullmatch(metadata["name"])
        or (metadata.get("labels") or {}).get(_tags.MARKER) != "1"
        or metadata.get("deletionTimestamp")
    ):
        return None
    state = SandboxState.RUNNING if is_ready(claim) else SandboxState.STARTING
    expires = _pod.expires_of(claim)
    is_over = expires is not None and is_ready(claim) and expires < datetime.now(UTC)
    if is_over or _condition(claim).get("reason") in _FINAL:
        state = SandboxState.STOPPED
    return SandboxInfo(
        id=metadata["name"],
        provider=NAME,
        state=state,
        tags=_tags.tags_of(metadata),
        created_at=_pod.time_of(metadata.get("creationTimestamp")),
        expires_at=expires,
    )


def is_ready(claim: Mapping[str, Any]) -> bool:
    """Whether a claim has a Sandbox whose pod is ready."""
    return _condition(claim).get("status") == "True" and pod_of(claim) != ""


def pod_of(claim: Mapping[str, Any]) -> str:
    """Return the name of the Sandbox, and of its pod, that a claim is bound to; "" while it is not."""
    return str(((claim.get("status") or {}).get("sandbox") or {}).get("name") or "")


def failure(claim: Mapping[str, Any]) -> SandboxError | None:
    """Return why a claim will get no sandbox; None while it still may."""
    reason, name = _condition(claim).get("reason"), claim["metadata"]["name"]
    if reason in _MISSING:
        pool = claim["spec"]["warmPoolRef"]["name"]
        return ConfigurationError(
            f"kubernetes cannot honour claims={pool!r}: {ready_words(claim)}; make the SandboxWarmPool "
            "and its SandboxTemplate in this namespace"
        )
    if reason in _FINAL:
        text = f"{name} did not start: {ready_words(claim)}"
        return SandboxStartError(text, sandbox_id=name)
    return None


def ready_words(claim: Mapping[str, Any]) -> str:
    """Return the controller's words on whether a claim is ready."""
    ready = _condition(claim)
    if not ready:
        return "no controller of agent-sandbox has looked at the claim"
    return f"{ready.get('reason')}: {ready.get('message') or ''}".rstrip(": ")


def _condition(claim: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == "Ready"), {})


def _rfc3339(when: float) -> str:
    return datetime.fromtimestamp(math.ceil(when), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
