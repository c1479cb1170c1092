"""The reward job of the examples as a Job of the cluster, with its service account and Role alone."""

import json
from pathlib import Path
from typing import Any

import aiohttp

import sandboxkit
from tests.kubernetes.cluster import Cluster, kubectl, wait_until
from tests.kubernetes.here import IMAGE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
PACKAGES = Path(aiohttp.__file__).parents[1]


def test_the_reward_job_scores_in_pods_beside_its_own(cluster: Cluster, namespace: str) -> None:
    kubectl("create", "--namespace", namespace, "--filename", str(EXAMPLES / "role.yaml"))
    shown = kubectl(
        "create",
        *("--namespace", namespace, "--filename", str(EXAMPLES / "reward-job.yaml")),
        *("--dry-run=client", "--output", "json"),
    )
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    cluster.request("POST", jobs, with_this_checkout(json.loads(shown)))
    try:
        wait_until(lambda: finished(cluster, f"{jobs}/reward"), "the job's end", seconds=120)
        output = kubectl("logs", "--namespace", namespace, "job/reward")
        assert output.splitlines() == [
            "insertion sort: 1.0",
            "banned builtin: 0.0",
            "ends the process: 0.0",
            "equals everything: 0.0",
            "no answer: 0.0",
        ]
        wait_until(lambda: not cluster.pods(namespace, "job-name!=reward"), "the sandboxes' end")
    finally:
        # The pods first: the job is gone when they are.
        cluster.request("DELETE", f"{jobs}/reward", {"propagationPolicy": "Foreground"})
        wait_until(lambda: not cluster.request("GET", jobs)["items"], "the job's end")


def with_this_checkout(job: dict[str, Any]) -> dict[str, Any]:
    """The job or deployment with the tests' image, and this checkout and its packages where one's own image would be."""
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folders = {ROOT, PACKAGES, Path(sandboxkit.__file__).resolve().parents[1]}
    mounted: list[dict[str, Any]] = [
        {"name": f"host-{number}", "hostPath": {"path": str(folder)}}
        for number, folder in enumerate(folders)
    ]
    pod["volumes"] = [*pod.get("volumes", []), *mounted]
    container["volumeMounts"] = container.get("volumeMounts", []) + [
        {"name": volume["name"], "mountPath": volume["hostPath"]["path"], "readOnly": True}
        for volume in mounted
    ]
    container |= {"image": IMAGE, "workingDir": str(ROOT), "resources": {}}
    paths = ":".join(str(folder) for folder in folders)
    given = {each["name"]: each["value"] for each in container["env"]}
    given |= {"SANDBOXKIT_KUBERNETES_IMAGE": IMAGE, "PYTHONPATH": paths}
    container["env"] = [{"name": name, "value": value} for name, value in given.items()]
    return job


def finished(cluster: Cluster, path: str) -> bool:
    """Whether the job has ended, one way or the other."""
    conditions = cluster.request("GET", path)["status"].get("conditions", [])
    return any(each["type"] in {"Complete", "Failed"} for each in conditions)
