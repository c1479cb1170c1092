"""The manifests of examples/kubernetes against the API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandboxkit.integrations.grpo import config
from sandboxkit.providers.kubernetes import _rights
from tests.kubernetes.cluster import Cluster, kubectl

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


def test_the_api_server_takes_the_examples(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    found = {name: created(name, namespace, "--dry-run=server") for name in KINDS}
    assert {name: [each["kind"] for each in found[name]] for name in KINDS} == KINDS
    account, role, _ = found["role.yaml"]
    assert _rules(role) == _rules(_rights.role("sandboxkit"))
    for name in ("reward-job.yaml", "grpo-job.yaml"):
        pod = found[name][-1]["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == account["metadata"]["name"]
        assert {"name": "SANDBOXKIT_PROVIDER", "value": "kubernetes"} in pod["containers"][0]["env"]
    (tmp_path / "config.toml").write_text(found["grpo-job.yaml"][0]["data"]["config.toml"])
    assert config.read(tmp_path / "config.toml").grading.grader == "HostCompare"


# Any: manifests are JSON.
def _rules(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
