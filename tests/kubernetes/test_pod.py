"""The manifest of a sandbox's pod: its security, its limits, its tags, and what is read back."""

import copy
import json
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandboxkit.providers.kubernetes import _pod, _tags
from sandboxkit.providers.kubernetes._claim import used_by
from sandboxkit.providers.kubernetes._options import ClusterOptions, Security
from sandboxkit.providers.kubernetes._parts import parts_of
from sandboxkit.providers.kubernetes._snapshot_image import SnapshotImage
from sandboxkit.providers.kubernetes._storage import KEEPER
from sandboxkit.types import SandboxSpec, SandboxState
from tests.kubernetes.pod_security import BASELINE, RESTRICTED, broken

AGENT = parts_of(b"loader", bytes(2_500_000))
NAME = "sandboxkit-0123456789abcdef"
SPECS = {
    "plain": SandboxSpec(),
    "internet": SandboxSpec(network="internet"),
    "strict": SandboxSpec(profile="strict"),
    "all limits": SandboxSpec(cpus=2, memory_mb=512, disk_mb=100, gpu="2", user="1000:1000"),
    "detached": SandboxSpec(detach=True, lifetime=60),
    "elsewhere": SandboxSpec(workdir="/task/deep", profile="strict", disk_mb=64),
    "mounts": SandboxSpec(mounts={"/data": f"sha256:{'a' * 64}", "/cache": "volume:pip"}),
}


# Any, here and below: a manifest is JSON.
def made(spec: SandboxSpec, *, keeper: bool = False, **options: Any) -> dict[str, Any]:
    chosen = ClusterOptions(storage_claim="claim", **options)
    return _pod.manifest(NAME, spec, chosen, image="python:3.11-slim", agent=AGENT, keeper=keeper)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_restricted_pods_break_no_rule_of_that_level(spec: SandboxSpec) -> None:
    pod = made(spec, security="restricted", runtime_class="gvisor", image_pull_secrets=["pull"])
    assert broken(pod, RESTRICTED) == []


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_baseline_pods_break_no_rule_of_that_level(spec: SandboxSpec) -> None:
    assert broken(made(spec, no_network="policy"), BASELINE) == []


@pytest.mark.parametrize(
    ("security", "rules"), [("restricted", RESTRICTED), ("baseline", BASELINE)]
)
def test_keepers_break_no_rule_of_the_level(security: str, rules: Any) -> None:
    pod = made(KEEPER, keeper=True, security=security)
    assert broken(pod, rules) == []
    mounts = {each["name"]: each for each in container(pod)["volumeMounts"]}
    assert mounts["storage"] == {"name": "storage", "mountPath": "/storage"}
    assert pod["spec"]["volumes"][-1] == {
        "name": "storage",
        "persistentVolumeClaim": {"claimName": "claim"},
    }


@pytest.mark.parametrize(
    ("security", "rules"), [("restricted", RESTRICTED), ("baseline", BASELINE)]
)
def test_a_snapshot_in_an_image_breaks_no_rule_and_takes_none_of_the_sandboxs_disk(
    security: Security, rules: Any
) -> None:
    image = SnapshotImage("registry/snapshots@sha256:0", 5 << 20)
    options = ClusterOptions(security=security, no_network="policy")
    pod = _pod.manifest(
        NAME, SPECS["all limits"], options, image="image", agent=AGENT, snapshot=image
    )
    assert broken(pod, rules) == []
    (before,) = pod["spec"]["initContainers"]
    assert before["resources"]["limits"] == {
        "cpu": "2000m",
        "memory": "512Mi",
        "ephemeral-storage": "106Mi",
    }
    assert container(pod)["resources"]["limits"]["ephemeral-storage"] == "100Mi"
    assert image.key not in repr(image)


def test_a_sandbox_mounts_its_own_folders_of_the_claim_only() -> None:
    pod = made(SPECS["mounts"])
    mounts = [each for each in container(pod)["volumeMounts"] if each["name"] == "storage"]
    assert mounts == [
        {
            "name": "storage",
            "mountPath": "/data",
            "subPath": f"sandboxkit/datasets/{'a' * 64}",
            "readOnly": True,
        },
        {
            "name": "storage",
            "mountPath": "/cache",
            "subPath": "sandboxkit/volumes/pip",
            "readOnly": False,
        },
    ]
    assert used_by(pod, "datasets") == {"a" * 64}
    assert used_by(pod, "volumes") == {"pip"}
    for other in (made(SandboxSpec()), made(KEEPER, keeper=True)):
        assert not used_by(other, "datasets") | used_by(other, "volumes")
    assert "persistentVolumeClaim" not in json.dumps(made(SandboxSpec()))


def test_removing_the_interfaces_takes_one_capability_that_baseline_forbids() -> None:
    pod = made(SandboxSpec())
    assert broken(pod, BASELINE) == ["capabilities"]
    capabilities = container(pod)["securityContext"]["capabilities"]
    assert capabilities == {
        "drop": ["ALL"],
        "add": ["CHOWN", "KILL", "NET_ADMIN", "SETGID", "SETUID"],
    }
    capabilities["add"].remove("NET_ADMIN")
    assert broken(pod, BASELINE) == []
    assert "NET_ADMIN" not in json.dumps(made(SandboxSpec(network="internet")))


_BREAKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "host process": lambda pod, context: context.update(windowsOptions={"hostProcess": True}),
    "host namespaces": lambda pod, context: pod["spec"].update(hostPID=True),
    "privileged": lambda pod, context: context.update(privileged=True),
    "capabilities": lambda pod, context: context["capabilities"].update(add=["SYS_ADMIN"]),
    "host paths": lambda pod, context: pod["spec"]["volumes"].append(
        {"name": "h", "hostPath": {"path": "/"}}
    ),
    "host ports": lambda pod, context: container(pod).update(ports=[{"hostPort": 80}]),
    "AppArmor": lambda pod, context: pod["metadata"]["annotations"].update(
        {"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"}
    ),
    "SELinux": lambda pod, context: context.update(seLinuxOptions={"type": "spc_t"}),
    "proc mount": lambda pod, context: context.update(procMount="Unmasked"),
    "seccomp": lambda pod, context: context.update(seccompProfile={"type": "Unconfined"}),
    "sysctls": lambda pod, context: pod["spec"].update(
        securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}
    ),
    "volume types": lambda pod, context: pod["spec"]["volumes"].append({"name": "n", "nfs": {}}),
    "privilege escalation": lambda pod, context: context.pop("allowPrivilegeEscalation"),
    "non-root": lambda pod, context: context.pop("runAsNonRoot"),
    "non-root user": lambda pod, context: context.update(runAsUser=0),
    "seccomp is set": lambda pod, context: context.pop("seccompProfile"),
    "all capabilities dropped": lambda pod, context: context["capabilities"].pop("drop"),
}


def test_every_rule_can_be_broken() -> None:
    assert set(_BREAKS) == set(RESTRICTED)
    good = made(SandboxSpec(), security="restricted")
    for name, break_it in _BREAKS.items():
        pod = copy.deepcopy(good)
        break_it(pod, container(pod)["securityContext"])
        assert name in broken(pod, RESTRICTED), name


def test_a_pod_gets_nothing_of_the_cluster() -> None:
    spec = made(SandboxSpec(network="internet"))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["dnsPolicy"] == "Default"
    assert spec["hostname"] == "sandbox"
    assert "serviceAccountName" not in spec


def test_the_manifest_has_no_secret() -> None:
    spec = SandboxSpec(
        env={"PLAIN": "seen-nowhere"},
        secrets={"TOKEN": "s3cr3t-value"},
        command=("main-command",),
        files={"/workspace/x": b"content-of-file"},
    )
    text = json.dumps(made(spec))
    for hidden in ("seen-nowhere", "s3cr3t-value", "main-command", "content-of-file"):
        assert hidden not in text


def test_limits_become_resources() -> None:
    spec = SandboxSpec(cpus=0.5, memory_mb=256, disk_mb=100, gpu="2")
    assert container(made(spec))["resources"] == {
        "limits": {
            "cpu": "500m",
            "memory": "256Mi",
            "ephemeral-storage": "100Mi",
            "nvidia.com/gpu": "2",
        },
        "requests": {
            "cpu": "50m",
            "memory": "64Mi",
            "ephemeral-storage": "64Mi",
            "nvidia.com/gpu": "2",
        },
    }


def test_missing_limits_have_defaults() -> None:
    assert container(made(SandboxSpec()))["resources"]["limits"] == {
        "memory": "1024Mi",
        "ephemeral-storage": "10240Mi",
    }


@pytest.mark.parametrize(
    ("spec", "asked", "requests"),
    [
        (SandboxSpec(memory_mb=32), {}, {"memory": "32Mi"}),
        (SandboxSpec(cpus=0.02), {}, {"cpu": "20m"}),
        (SandboxSpec(disk_mb=10), {}, {"ephemeral-storage": "10Mi"}),
        (SandboxSpec(memory_mb=100), {"memory": "1Gi"}, {"memory": "100Mi"}),
        (SandboxSpec(memory_mb=4096), {"memory": "1G", "cpu": "1"}, {"memory": "1G", "cpu": "1"}),
    ],
)
def test_a_request_is_never_above_its_limit(
    spec: SandboxSpec, asked: dict[str, str], requests: dict[str, str]
) -> None:
    found = container(made(spec, requests=asked))["resources"]["requests"]
    assert {name: found[name] for name in requests} == requests


def test_strict_divides_its_space_and_has_a_read_only_root() -> None:
    pod = made(SandboxSpec(profile="strict", disk_mb=64))
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    sizes = [each["emptyDir"] for each in pod["spec"]["volumes"] if "emptyDir" in each]
    assert sizes == [{"sizeLimit": "32Mi"}, {"sizeLimit": "32Mi"}]
    mounts = {each["mountPath"]: each.get("readOnly") for each in container(pod)["volumeMounts"]}
    assert mounts == {"/.sandboxkit": True, "/tmp": None, "/workspace": None}
    assert "--user=65534" in container(pod)["command"]


def test_restricted_pods_run_the_agent_and_commands_as_one_user() -> None:
    for user, uid, gid in ((None, 65534, 65534), ("1000", 1000, 1000), ("1000:50", 1000, 50)):
        context = container(made(SandboxSpec(user=user), security="restricted"))["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (uid, gid)
        assert context["runAsNonRoot"] is True


def test_placing_is_passed_on() -> None:
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    pod = made(
        SandboxSpec(),
        runtime_class="gvisor",
        node_selector={"pool": "sandboxes"},
        tolerations=[toleration],
        image_pull_secrets=["one", "two"],
        image_pull_policy="Always",
        gpu_resource="amd.com/gpu",
        priority_class="batch",
        queue="team-a",
        topology_spread="topology.kubernetes.io/zone",
    )
    spec = pod["spec"]
    assert spec["priorityClassName"] == "batch"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["nodeSelector"] == {"pool": "sandboxes", "kubernetes.io/arch": "amd64"}
    assert toleration in spec["tolerations"]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert container(pod)["imagePullPolicy"] == "Always"
    gpu = made(SandboxSpec(gpu="1"), gpu_resource="amd.com/gpu")
    assert container(gpu)["resources"]["limits"]["amd.com/gpu"] == "1"


def test_tags_of_any_characters_become_labels_that_kubernetes_takes() -> None:
    tags = {"odd/key": "x=y:z, ü 'q'", "empty": "", "long": "v" * 256, "emoji": "\U0001f600"}
    metadata = made(SandboxSpec(tags=tags))["metadata"]
    for name, value in metadata["labels"].items():
        prefix, _, rest = name.rpartition("/")
        assert re.fullmatch(r"[a-z0-9.-]{1,253}", prefix)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", rest)
        assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value)
    assert _tags.tags_of(metadata) == tags
    assert set(_tags.selector({"empty": ""}).split(",")) <= {
        f"{name}={value}" for name, value in metadata["labels"].items()
    }


@pytest.mark.parametrize("stored", ["", "[]", "{", "null", '{"a": 1}', "7"])
def test_an_edited_annotation_is_not_a_tag(stored: str) -> None:
    assert _tags.tags_of({"annotations": {_tags.ANNOTATION: stored}}) == {}


@pytest.mark.parametrize(
    ("lifetime", "longest", "net"),
    [(3600.0, 86_400.0, 86_400), (100_000.5, 86_400.0, 100_601), (None, 86_400.0, None)],
)
def test_the_last_net_is_wider_than_the_lifetime(
    lifetime: float | None, longest: float, net: int | None
) -> None:
    spec = made(SandboxSpec(lifetime=lifetime), max_lifetime=longest)["spec"]
    assert spec.get("activeDeadlineSeconds") == net


def test_what_kubernetes_allows_a_pod_counts_from_its_start() -> None:
    pod = made(SandboxSpec())
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert _pod.longest(pod, now) == 86_400
    pod["status"] = {"startTime": "2029-12-31T23:00:00Z"}
    assert _pod.longest(pod, now) == 86_400 - 3600
    del pod["spec"]["activeDeadlineSeconds"]
    assert _pod.longest(pod, now) == math.inf


def listed(**changes: Any) -> dict[str, Any]:
    """A pod as the API server describes it."""
    pod = made(SandboxSpec(tags={"a": "1"}))
    pod["metadata"]["annotations"][_pod.EXPIRES] = "1893456000"
    pod["metadata"] |= {"creationTimestamp": "2029-12-31T00:00:00Z", "uid": "u"}
    pod["metadata"] |= changes.pop("metadata", {})
    return pod | changes


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("Pending", SandboxState.STARTING),
        ("Running", SandboxState.RUNNING),
        ("Succeeded", SandboxState.STOPPED),
        ("Failed", SandboxState.STOPPED),
    ],
)
def test_a_pod_is_read_back(phase: str, state: SandboxState) -> None:
    info = _pod.info_of(listed(status={"phase": phase}))
    assert info is not None
    assert (info.id, info.state, info.image) == (NAME, state, "python:3.11-slim")
    assert info.tags["a"] == "1"
    assert info.created_at == datetime(2029, 12, 31, tzinfo=UTC)
    assert info.expires_at == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("stored", ["soon", "", "1e99", "nan"])
def test_an_expiry_that_somebody_edited_is_none(stored: str) -> None:
    pod = listed()
    pod["metadata"]["annotations"][_pod.EXPIRES] = stored
    info = _pod.info_of(pod)
    assert info is not None
    assert info.expires_at is None


def test_why_an_agent_ended_its_sandbox_by_itself() -> None:
    def ended(expires: float, code: int) -> str:
        status = {"containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]}
        pod = listed(status=status)
        pod["metadata"]["annotations"][_pod.EXPIRES] = str(time.time() + expires)
        return _pod.why_left(pod)

    assert ended(-1, 0) == "lifetime"
    assert ended(600, 0) == "its owner went away"
    assert ended(-1, 137) == ended(600, 1) == ""
    assert _pod.why_left(listed()) == ""


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "somebody-elses"},
        {"labels": {}},
        {"labels": None},
        {"deletionTimestamp": "2030-01-01T00:00:00Z"},
    ],
)
def test_what_is_no_sandbox_or_is_going_is_none(metadata: dict[str, Any]) -> None:
    assert _pod.info_of(listed(metadata=metadata)) is None


def test_when_a_pod_ended() -> None:
    now = datetime(2029, 12, 31, tzinfo=UTC)
    assert _pod.finished_at(listed(status={"phase": "Running"})) is None
    assert _pod.finished_at(listed()) is None
    assert _pod.finished_at(listed(status={"phase": "Failed", "reason": "Evicted"})) == now
    ended = (now + timedelta(hours=1)).isoformat()
    states = [{"state": {"terminated": {"finishedAt": ended}}}]
    pod = listed(status={"phase": "Succeeded", "containerStatuses": states})
    assert _pod.finished_at(pod) == now + timedelta(hours=1)


def test_the_agents_parts_fit_and_join() -> None:
    agent = bytes(range(256)) * 10_000
    parts = parts_of(b"loader", agent)
    assert len(parts.names) == len(parts.config_maps) == 4
    for each in parts.config_maps:
        assert each["immutable"] is True
        assert len(json.dumps(each)) < 1 << 20
    assert b"".join(parts.contents[n][f"p{n}"] for n in range(4)) == agent
    for content in parts.contents:
        assert sum(map(len, content.values())) <= 1 << 20
    assert parts.contents[0]["loader"] == b"loader"
    other = parts_of(b"loader", agent + b"\0")
    assert not {*parts.names} & {*other.names}


def test_nobody_may_read_the_loader() -> None:
    (first, *_) = AGENT.volume["projected"]["sources"]
    modes = {each["path"]: oct(each["mode"]) for each in first["configMap"]["items"]}
    assert modes == {"loader": "0o111", "p0": "0o444"}
