"""Programs in a pod cannot escape its limits, in each of the two security modes and without a network."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.docker.boxes import Boxes
from tests.kubernetes.cluster import Cluster, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

_PROGRAMS = tomllib.loads(Path(__file__).with_name("security.toml").read_text())
_ONLINE = {"network": "internet"}  # this cluster enforces no policies
# Any: options of every type.
_STRICT: dict[str, Any] = {"profile": "strict", "workdir": "/task/deep", "disk_mb": 64, **_ONLINE}
_SPECS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "restricted": _ONLINE,
    "strict baseline": _STRICT,
    "strict restricted": _STRICT,
}


@pytest.mark.parametrize("mode", _SPECS)
async def test_programs_find_nothing_of_the_cluster_and_no_way_out(
    boxes: Boxes[KubernetesProvider], mode: str
) -> None:
    box = await boxes.start(boxes.provider(security=mode.removeprefix("strict ")), **_SPECS[mode])
    programs = {name: each for name, each in _PROGRAMS.items() if mode in each["of"]}
    found = {name: await box.python(each["code"]) for name, each in programs.items()}
    assert found == {name: each["output"] for name, each in programs.items()}
    if mode == "baseline":
        assert (await box.run("id", "-u", user="nobody"))[1] == "65534\n"
    if mode == "restricted":
        for user in ("root", "1000"):
            with pytest.raises(ConfigurationError, match=user):
                await box.run("true", user=user)
    assert await box.run("echo", "still here") == (0, "still here\n", "")


async def test_secrets_and_commands_are_not_in_the_cluster(
    boxes: Boxes[KubernetesProvider], cluster: Cluster, room: str
) -> None:
    env, secrets = {"PLAIN": "seen-nowhere"}, {"TOKEN": "s3cr3t-value"}
    box = await boxes.start(env=env, secrets=secrets, command=("sleep", "98765.4321"))
    read = "import os; print(os.environ['PLAIN'], os.environ['TOKEN'], 'told-to-us-alone')"
    assert await box.python(read) == "seen-nowhere s3cr3t-value told-to-us-alone"
    wait_until(lambda: cluster.pods(room)[0]["status"]["phase"] == "Running", "the node's word")
    shown = json.dumps(cluster.pods(room))
    for hidden in ("seen-nowhere", "s3cr3t-value", "told-to-us-alone", "98765.4321"):
        assert hidden not in shown
    # The runtime writes what goes over attach to the node's disk; exec is not logged.
    with pytest.raises(json.JSONDecodeError) as log:
        cluster.request("GET", f"/api/v1/namespaces/{room}/pods/{box.id}/log")
    assert log.value.doc == ""
