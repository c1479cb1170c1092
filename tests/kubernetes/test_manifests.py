"""The manifests of examples/kubernetes against the API server, and a program with only that Role."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from kubernetes_asyncio.client import models

from sandboxkit.integrations.grpo import config
from sandboxkit.providers.kubernetes import _rights
from tests.kubernetes.cluster import ApiError, Cluster, kubectl

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
KINDS = {
    "role.yaml": ["ServiceAccount", "Role", "RoleBinding"],
    "reward-job.yaml": ["Job"],
    "grpo-job.yaml": ["ConfigMap", "PersistentVolumeClaim", "Job"],
}


def created(name: str, namespace: str, *options: str) -> list[dict[str, Any]]:
    """Create an example's objects and return them; with --dry-run=server the API server keeps none."""
    command = ["create", "--namespace", namespace, "--filename", str(EXAMPLES / name)]
    command += ["--validate=true"]
    return list(documents(kubectl(*command, "--output", "json", *options)))


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Each of several JSON documents that follow one another."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


def test_every_example_is_checked() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_every_field_of_an_example_is_one_of_its_kind(name: str) -> None:
    for document in yaml.safe_load_all((EXAMPLES / name).read_text()):
        assert list(_unknown(document, f"V1{document['kind']}", document["kind"])) == []


@pytest.mark.parametrize("name", KINDS)
def test_the_api_server_takes_an_example(name: str, cluster: Cluster, namespace: str) -> None:
    kinds = [each["kind"] for each in created(name, namespace, "--dry-run=server")]
    assert kinds == KINDS[name]
    with pytest.raises(ApiError) as refusal:
        cluster.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/reward")
    assert refusal.value.status == 404


@pytest.mark.parametrize("name", ["reward-job.yaml", "grpo-job.yaml"])
def test_a_job_has_the_service_account_of_the_role(
    name: str, cluster: Cluster, namespace: str
) -> None:
    account = created("role.yaml", namespace, "--dry-run=server")[0]["metadata"]["name"]
    job = created(name, namespace, "--dry-run=server")[-1]
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    assert {"name": "SANDBOXKIT_PROVIDER", "value": "kubernetes"} in pod["containers"][0]["env"]


def test_the_role_is_what_the_provider_needs(cluster: Cluster, namespace: str) -> None:
    role = created("role.yaml", namespace, "--dry-run=server")[1]
    assert _rules(role) == _rules(_rights.role("sandboxkit"))


def test_the_service_account_may_do_that_and_no_more(cluster: Cluster, namespace: str) -> None:
    created("role.yaml", namespace)
    account = f"system:serviceaccount:{namespace}:sandboxkit"
    rights = _rules(_rights.role("sandboxkit"))
    refused = {("", "secrets", "get"), ("", "pods/exec", "delete"), ("", "configmaps", "list")}
    for group, resource, verb in sorted(rights | refused):
        allowed = (group, resource, verb) in rights
        assert _may(cluster, account, namespace, group, resource, verb) is allowed, (resource, verb)
    assert not _may(cluster, account, "default", "", "pods", "create")


def test_the_configuration_of_the_training_is_valid(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    written = created("grpo-job.yaml", namespace, "--dry-run=server")[0]["data"]["config.toml"]
    (tmp_path / "config.toml").write_text(written)
    assert config.read(tmp_path / "config.toml").grading.grader == "HostCompare"


def _unknown(value: Any, kind: str, where: str) -> Iterator[str]:
    """Fields that the official client's model of this kind does not have."""
    if kind.startswith("list["):
        for number, each in enumerate(value):
            yield from _unknown(each, kind[5:-1], f"{where}[{number}]")
    elif model := getattr(models, kind, None):
        assert isinstance(value, dict), where
        kinds = {json: model.openapi_types[name] for name, json in model.attribute_map.items()}
        for key, each in value.items():
            if key in kinds:
                yield from _unknown(each, kinds[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"


def _rules(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _may(
    cluster: Cluster, account: str, namespace: str, group: str, resource: str, verb: str
) -> bool:
    kind, _, part = resource.partition("/")
    attributes = {
        "namespace": namespace,
        "group": group,
        "resource": kind,
        "subresource": part,
        "verb": verb,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.request("POST", path, review)["status"]["allowed"])
