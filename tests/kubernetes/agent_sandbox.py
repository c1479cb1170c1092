"""A small controller for the objects of agent-sandbox (kubernetes-sigs) in one namespace.

The API server has the real kinds (scripts/kube/agent-sandbox.yaml). The controller does what the source of
version 0.5.6 was read to do: a pool keeps `replicas` Sandboxes, each with a pod of the same name; a claim
adopts a ready Sandbox of its pool, by a write that fails if another one was first, or gets a new Sandbox of
its own name; the claim has the Sandbox's Ready condition and name; it is deleted at its shutdownTime, or
`ttlSecondsAfterFinished` after its pod has ended. The cluster's own garbage collector follows the owner
references: it deletes the Sandbox of a claim, and the pod of a Sandbox.

Where scripts/kube.sh runs the real controller, that one does the work, and RealController watches it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.components import lack, reason
from tests.kubernetes.cluster import STATE, ApiError, Cluster, wait_until

EXTENSIONS, CORE = "extensions.agents.x-k8s.io", "agents.x-k8s.io"
POOL = "pool"
_KINDS = {
    "SandboxTemplate": EXTENSIONS,
    "SandboxWarmPool": EXTENSIONS,
    "SandboxClaim": EXTENSIONS,
    "Sandbox": CORE,
}
_IN_POOL = f"{CORE}/warm-pool-sandbox"
_MERGE = "application/merge-patch+json"

# Any: the API server's JSON.
Json = dict[str, Any]


def path(namespace: str, kind: str, name: str = "", sub: str = "") -> str:
    """The path of the objects of a kind, or of one."""
    end = "es" if kind == "Sandbox" else "s"
    base = f"/apis/{_KINDS[kind]}/v1beta1/namespaces/{namespace}/{kind.lower()}{end}"
    return "/".join(each for each in (base, name, sub) if each)


@contextmanager
def warm_pool(cluster: Cluster, namespace: str, *, replicas: int) -> "Iterator[Controller]":
    """A warm pool named POOL that is full, and the controller that keeps it so.

    Without the kinds in the API server the test is skipped, or fails where CI requires Kubernetes.
    """
    try:
        cluster.request("GET", f"/apis/{EXTENSIONS}/v1beta1")
    except ApiError as error:
        if error.status != 404:
            raise
        lack(reason("agent-sandbox in the cluster", "scripts/kube.sh down, then up"), "KUBERNETES")
    spec: Json = json.loads(Path(__file__).with_name("agent_sandbox.json").read_text())
    template = {"metadata": {"labels": {"sandboxkit.dev/network": "none"}}, "spec": spec}
    _make(cluster, namespace, "SandboxTemplate", {"podTemplate": template})
    pool = {"replicas": replicas, "sandboxTemplateRef": {"name": POOL}}
    _make(cluster, namespace, "SandboxWarmPool", pool)
    kind = RealController if (STATE / "pid" / "sandboxes").exists() else Controller
    controller = kind(cluster, namespace)
    controller.start()
    try:
        controller.wait_until(lambda: controller.ready >= replicas, "a full warm pool")
        yield controller
    finally:
        try:
            cluster.request("DELETE", path(namespace, "SandboxWarmPool", POOL))
            controller.wait_until(lambda: not cluster.pods(namespace), "the end of the pool's pods")
        finally:
            controller.end()


def _make(cluster: Cluster, namespace: str, kind: str, spec: Json) -> None:
    body: Json = {"apiVersion": f"{_KINDS[kind]}/v1beta1", "kind": kind}
    body |= {"metadata": {"name": POOL}, "spec": spec}
    cluster.request("POST", path(namespace, kind), body)


class Controller(threading.Thread):
    """The controllers of one namespace; a round looks at everything there."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self._over = threading.Event()
        self._paused = False
        self.ready = 0
        """How many Sandboxes of the pool nobody has claimed, and are ready."""

    @property
    def given(self) -> list[tuple[str, str]]:
        """The claims, and the Sandboxes that they got."""
        claims = self._list("SandboxClaim").items()
        bound = {name: (each.get("status") or {}).get("sandbox") for name, each in claims}
        return [(name, sandbox["name"]) for name, sandbox in bound.items() if sandbox]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        wait_until(condition, what, seconds=120)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do nothing meanwhile, as when the controller is down."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self.join(60)

    def run(self) -> None:
        while not self._over.wait(0.1):
            if not self._paused:
                self._round()

    def _list(self, kind: str) -> dict[str, Json]:
        place = path(self._namespace, kind) if kind in _KINDS else self._pods()
        items = self._cluster.request("GET", place)["items"]
        return {each["metadata"]["name"]: each for each in items}

    def _pods(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods" + (f"/{name}" if name else "")

    def _write(self, method: str, place: str, body: Json | None = None) -> None:
        """Make a change, unless another one was first, which the next round will see."""
        content = _MERGE if method == "PATCH" else "application/json"
        try:
            self._cluster.request(method, place, body, content=content)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _round(self) -> None:
        templates, pools = self._list("SandboxTemplate"), self._list("SandboxWarmPool")
        claims, sandboxes = self._list("SandboxClaim"), self._list("Sandbox")
        pods = self._list("Pod")
        for sandbox in filter(_lives, sandboxes.values()):
            self._tend(sandbox, pods.get(sandbox["metadata"]["name"]))
        free = [
            each
            for each in sandboxes.values()
            if _lives(each) and _labels(each).get(_IN_POOL) and _is_ready(each)
        ]
        self.ready = len(free)
        for claim in filter(_lives, claims.values()):
            self._serve(claim, free, sandboxes, pools, templates)
        for name, pool in pools.items():
            template = templates.get(pool["spec"]["sandboxTemplateRef"]["name"])
            uid = pool["metadata"]["uid"]
            there = [each for each in sandboxes.values() if _lives(each) and _owner(each) == uid]
            missing = pool["spec"]["replicas"] - len(there) if template and _lives(pool) else 0
            for _ in range(missing):
                assert template is not None
                metadata = {"generateName": f"{name}-", "labels": {_IN_POOL: name}}
                self._make_sandbox(metadata, pool, template)

    def _make_sandbox(self, metadata: Json, owner: Json, template: Json) -> None:
        body = {
            "apiVersion": f"{CORE}/v1beta1",
            "kind": "Sandbox",
            "metadata": metadata | {"ownerReferences": [_reference(owner)]},
            "spec": {"podTemplate": template["spec"]["podTemplate"]},
        }
        self._write("POST", path(self._namespace, "Sandbox"), body)

    def _tend(self, sandbox: Json, pod: Json | None) -> None:
        """Make the Sandbox's pod if there is none, and note its state."""
        name, template = sandbox["metadata"]["name"], sandbox["spec"]["podTemplate"]
        if pod is None:
            labels = {**_labels(template), f"{CORE}/sandbox": name}
            spec = {"automountServiceAccountToken": False, **template["spec"]}
            metadata = {"name": name, "labels": labels, "ownerReferences": [_reference(sandbox)]}
            self._write("POST", self._pods(), {"metadata": metadata, "spec": spec})
            return
        phase = pod["status"].get("phase")
        ready = ("Ready", "True") in [
            (each["type"], each["status"]) for each in pod["status"].get("conditions") or ()
        ]
        if phase in ("Failed", "Succeeded"):
            reason = f"Pod{phase}"
            conditions = [_condition("Ready", False, reason), _condition("Finished", True, reason)]
        elif phase == "Running" and ready and pod["status"].get("podIPs"):
            conditions = [_condition("Ready", True, "DependenciesReady")]
        else:
            conditions = [_condition("Ready", False, "DependenciesNotReady")]
        self._note("Sandbox", sandbox, {"conditions": conditions})

    def _serve(
        self,
        claim: Json,
        free: list[Json],
        sandboxes: dict[str, Json],
        pools: dict[str, Json],
        templates: dict[str, Json],
    ) -> None:
        metadata = claim["metadata"]
        if _is_over(claim):
            self._write("DELETE", path(self._namespace, "SandboxClaim", metadata["name"]))
            return
        mine = [each for each in sandboxes.values() if _owner(each) == metadata["uid"]]
        pool = pools.get(claim["spec"]["warmPoolRef"]["name"])
        template = pool and templates.get(pool["spec"]["sandboxTemplateRef"]["name"])
        if mine:
            conditions = (mine[0].get("status") or {}).get("conditions") or []
            bound = {"name": mine[0]["metadata"]["name"]}
            self._note("SandboxClaim", claim, {"conditions": conditions, "sandbox": bound})
        elif template is None:
            conditions = [_condition("Ready", False, "WarmPoolNotFound")]
            self._note("SandboxClaim", claim, {"conditions": conditions})
        elif free:
            sandbox = free.pop(0)
            name = sandbox["metadata"]["name"]
            change = {
                "resourceVersion": sandbox["metadata"]["resourceVersion"],
                "labels": {_IN_POOL: None, f"{CORE}/claim-uid": metadata["uid"]},
                "ownerReferences": [_reference(claim)],
            }
            self._write("PATCH", path(self._namespace, "Sandbox", name), {"metadata": change})
        else:
            self._make_sandbox({"name": metadata["name"]}, claim, template)

    def _note(self, kind: str, thing: Json, status: Json) -> None:
        """Store a status, if it is another one."""
        if _without_times(thing) != _without_times({"status": status}):
            place = path(self._namespace, kind, thing["metadata"]["name"], "status")
            self._write("PATCH", place, {"status": status})


class RealController(Controller):
    """Watches the real controller in one namespace."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._cluster.frozen("sandboxes"):
            yield

    def _round(self) -> None:
        pool = self._list("SandboxWarmPool").get(POOL) or {}
        self.ready = (pool.get("status") or {}).get("readyReplicas", 0)


def _labels(thing: Json) -> Json:
    return (thing.get("metadata") or {}).get("labels") or {}


def _lives(thing: Json) -> bool:
    return "deletionTimestamp" not in thing["metadata"]


def _owner(thing: Json) -> str:
    owners = thing["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])


def _reference(owner: Json) -> Json:
    kept = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    kept |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {**kept, "controller": True, "blockOwnerDeletion": True}


def _condition(kind: str, status: bool, reason: str) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # The message is not empty: this server, built with Go 1.19, takes an empty string of a custom object for null.
    found = {"type": kind, "status": str(status), "reason": reason, "message": f"by {reason}"}
    return {**found, "lastTransitionTime": now}


def _without_times(thing: Json) -> tuple[Json, Json]:
    status = thing.get("status") or {}
    states = {name: (each["status"], each["reason"]) for name, each in _conditions(thing).items()}
    return states, status.get("sandbox") or {}


def _conditions(thing: Json) -> dict[str, Json]:
    return {each["type"]: each for each in (thing.get("status") or {}).get("conditions") or ()}


def _is_ready(sandbox: Json) -> bool:
    return _conditions(sandbox).get("Ready", {}).get("status") == "True"


def _is_over(claim: Json) -> bool:
    lifecycle = claim["spec"].get("lifecycle") or {}
    ends = [lifecycle["shutdownTime"]] if "shutdownTime" in lifecycle else []
    times = [datetime.fromisoformat(each).timestamp() for each in ends]
    finished, kept = _conditions(claim).get("Finished"), lifecycle.get("ttlSecondsAfterFinished")
    if finished is not None and kept is not None:
        times.append(datetime.fromisoformat(finished["lastTransitionTime"]).timestamp() + kept)
    return bool(times) and min(times) <= time.time()
