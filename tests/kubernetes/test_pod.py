"""A sandbox's pod: options that are refused, its security, limits and tags, and what is read back."""

import json
import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.providers.kubernetes import KubernetesProvider, _pod, _tags
from sandboxkit.providers.kubernetes._claim import used_by
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._parts import parts_of
from sandboxkit.providers.kubernetes._policy_probe import verdict
from sandboxkit.providers.kubernetes._snapshot_image import SnapshotImage
from sandboxkit.providers.kubernetes._storage import KEEPER
from sandboxkit.types import SandboxSpec
from tests.data_here import beside

AGENT = parts_of(b"loader", bytes(2_500_000))
NAME = "sandboxkit-0123456789abcdef"
PODS, _RULES = beside(__file__, "pods.toml"), beside(__file__, "pod_security.toml")
LEVELS = {"baseline": _RULES["baseline"], "restricted": _RULES["baseline"] | _RULES["restricted"]}


# Any, here and below: a manifest is JSON, and a case TOML.
def made(spec: SandboxSpec, **more: Any) -> dict[str, Any]:
    options = ClusterOptions(storage_claim="claim", **more.pop("options", {}))
    return _pod.manifest(NAME, spec, options, image="python:3.11-slim", agent=AGENT, **more)


def broken(pod: dict[str, Any], level: str) -> list[str]:
    """The rules of a Pod Security Standard that a manifest breaks."""
    return [name for name, rule in LEVELS[level].items() if not _keeps(pod, rule)]


def _keeps(pod: dict[str, Any], rule: dict[str, Any]) -> bool:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    containers = [each for kind in kinds for each in pod["spec"].get(kind, ())]
    for path in rule["paths"]:
        start, *steps = path.split(".")
        for root in containers if start == "each" else [pod[start]]:
            found = list(_values(root, steps)) or list(_values(pod["spec"], steps))
            if rule.get("required") and not found:
                return False
            if any(each not in rule.get("allowed", found) for each in found):
                return False
            if any(each in found for each in rule.get("forbidden", ())):
                return False
    return True


def _values(value: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield value
    elif steps[0] == "keys":
        yield from value
    elif steps[0] == "*":
        for each in value.values() if isinstance(value, dict) else value:
            yield from _values(each, steps[1:])
    elif isinstance(value, dict) and value.get(steps[0]) is not None:
        yield from _values(value[steps[0]], steps[1:])


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """A manifest's fields by their paths; an item of a list by its mount's path or its name."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _flat(each, f"{where}/{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, each in enumerate(value):
            yield from _flat(each, f"{where}/{each.get('mountPath') or each.get('name', number)}")
    else:
        yield where, value


def _fields(pod: dict[str, Any]) -> dict[str, Any]:
    """Without the agent's volume and the time at which the lifetime ends."""
    pod["spec"]["volumes"][0] = {"name": "agent"}
    pod["metadata"]["annotations"].pop(_pod.EXPIRES, None)
    return dict(_flat(pod))


@pytest.mark.parametrize("case", PODS["cases"].values(), ids=PODS["cases"])
def test_a_manifest_differs_from_the_plain_one_in_what_was_asked_for(case: dict[str, Any]) -> None:
    more: dict[str, Any] = {"options": json.loads(case.get("options", "{}"))}
    spec = SandboxSpec(**json.loads(case.get("spec", "{}")))
    if "keeper" in case:
        spec, more["keeper"] = KEEPER, True
    if "snapshot" in case:
        more["snapshot"] = SnapshotImage("registry/snapshots@sha256:0", 5 << 20, key="secret")
        assert "secret" not in repr(more["snapshot"])
    pod = made(spec, **more)
    assert broken(pod, more["options"].get("security", "baseline")) == case["breaks"]
    plain, found = dict(_flat(json.loads(PODS["plain"]))), _fields(pod)
    changed = {name for name in {**plain, **found} if plain.get(name) != found.get(name)}
    assert {name: found.get(name, "absent") for name in changed} == case["changes"]


def test_the_users_of_a_claim_are_found_by_their_mounts() -> None:
    pod = made(SandboxSpec(mounts={"/data": f"sha256:{'a' * 64}", "/cache": "volume:pip"}))
    assert used_by(pod, "datasets") == {"a" * 64}
    assert used_by(pod, "volumes") == {"pip"}
    for other in (made(SandboxSpec()), made(KEEPER, keeper=True)):
        assert not used_by(other, "datasets") | used_by(other, "volumes")


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


def test_what_kubernetes_allows_a_pod_counts_from_its_start() -> None:
    pod = made(SandboxSpec())
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert _pod.longest(pod, now) == 86_400
    pod["status"] = {"startTime": "2029-12-31T23:00:00Z"}
    assert _pod.longest(pod, now) == 86_400 - 3600
    del pod["spec"]["activeDeadlineSeconds"]
    assert _pod.longest(pod, now) == math.inf


@pytest.mark.parametrize("case", PODS["read"].values(), ids=PODS["read"])
def test_a_pod_is_read_back(case: dict[str, Any]) -> None:
    pod = made(SandboxSpec(tags={"a": "1"}))
    pod["metadata"] |= {"creationTimestamp": "2029-12-31T00:00:00Z", "uid": "u"}
    pod["metadata"] |= json.loads(case.get("metadata", "{}"))
    pod["metadata"]["annotations"][_pod.EXPIRES] = case.get("expires", "4102444800")
    if "status" in case:
        pod["status"] = json.loads(case["status"])
    info = _pod.info_of(pod)
    if info is not None:
        assert (info.id, info.image, info.tags["a"]) == (NAME, "python:3.11-slim", "1")
        assert info.created_at == datetime(2029, 12, 31, tzinfo=UTC)
    assert case["state"] == (info.state.value if info is not None else "none")
    assert case.get("until") == (info and info.expires_at and info.expires_at.isoformat())
    finished = _pod.finished_at(pod)
    assert case.get("finished") == (finished and finished.isoformat())
    assert case.get("left", "") == _pod.why_left(pod)


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
    (first, *_) = made(SandboxSpec())["spec"]["volumes"][0]["projected"]["sources"]
    modes = {each["path"]: oct(each["mode"]) for each in first["configMap"]["items"]}
    assert modes == {"loader": "0o111", "p0": "0o444"}


_CASES: dict[str, list[dict[str, Any]]] = beside(__file__, "bad_input.toml")


def provider(**options: Any) -> KubernetesProvider:
    # Nobody answers there, which shows that nobody is asked.
    return KubernetesProvider(kubeconfig="/nonexistent/kubeconfig", **options)


def _refused(spec: dict[str, Any], options: dict[str, Any]) -> str:
    with pytest.raises(ConfigurationError, match="cannot honour") as caught:
        provider(**options).check(SandboxSpec(**spec))
    return str(caught.value)


@pytest.mark.parametrize("case", _CASES["spec"], ids=lambda case: case["named"])
def test_options_that_a_pod_lacks_are_refused(case: dict[str, Any]) -> None:
    assert case["named"] in _refused(case["spec"], case.get("options", {}))


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("env='A'", {"env": {"A": "\ud800"}}),
        ("tags='a'", {"tags": {"a": "\ud800"}}),
        ("tags='900 tags'", {"tags": {f"tag-{n}": "v" * 256 for n in range(900)}}),
    ],
    ids=["env", "tag", "tags"],
)
def test_text_that_no_manifest_holds_is_refused(named: str, options: dict[str, Any]) -> None:
    assert named in _refused(options, {})


@pytest.mark.parametrize("case", _CASES["options"], ids=lambda case: case["named"])
def test_options_of_the_provider(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        provider(**case["options"])
    assert case["named"] in str(caught.value)


@pytest.mark.parametrize("case", _CASES["variables"], ids=lambda case: case["variable"])
def test_an_invalid_variable_is_refused(case: dict[str, str]) -> None:
    with (
        mock.patch.dict(os.environ, {case["variable"]: case["named"].strip("'")}),
        pytest.raises(ConfigurationError, match=case["named"]),
    ):
        Session("kubernetes")


def test_an_argument_overrides_its_variable() -> None:
    with mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_SECURITY": "restricted"}):
        provider().check(SandboxSpec(user="1000"))
        provider(security="baseline").check(SandboxSpec(user="root"))
        assert "restricted" in _refused({"user": "root"}, {})


@pytest.mark.parametrize(
    ("free", "denied", "expected"),
    [
        (True, True, "does not enforce network policies"),
        (False, True, "does not enforce network policies"),
        (False, False, "could not be verified"),
    ],
)
def test_two_probe_pods_prove_a_policy(free: bool, denied: bool, expected: str) -> None:
    assert verdict(free=True, denied=False) is None
    refusal = str(verdict(free=free, denied=denied))
    assert expected in refusal
    assert "network='none'" in refusal
