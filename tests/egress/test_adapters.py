"""An egress in the configuration of Inspect, and in that of the OpenAI Agents SDK."""

import json
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Egress, Session
from tests.e2b.server import emulator as e2b_emulator
from tests.harbor.tasks import STATUS

pytestmark = pytest.mark.anyio
LOOK = ["python3", "-c", STATUS]


def test_a_list_of_rules_is_an_egress_and_a_wrong_rule_is_named() -> None:
    with Session("local", network=["pypi.org"]) as session:
        assert session.sandbox().spec.egress == Egress(allow=["pypi.org"])
        with pytest.raises(ConfigurationError, match=r"Egress\.allow='https://pypi\.org'"):
            session.sandbox(network=["pypi.org", "https://pypi.org"])


async def test_a_file_of_inspect_lists_what_its_sandbox_reaches(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitSandboxEnvironment

    with pytest.raises(ValueError, match="cpus=-1"):
        SandboxkitConfig(cpus=-1)
    config, record = tmp_path / "sandboxkit.yaml", tmp_path / "egress.jsonl"
    full = f"{{allow: [some.invalid], log: {record}, max_connections: 2}}"
    for network in ("[some.invalid, '*.github.com:443']", full):
        config.write_text(f"provider: local\nnetwork: {network}\n")
        made = await SandboxkitSandboxEnvironment.sample_init("test", str(config), {})
        try:
            result = await made["default"].exec(LOOK)
        finally:
            await SandboxkitSandboxEnvironment.sample_cleanup("test", str(config), made, False)
        assert result.stdout == "502\n", "the name is allowed, and cannot be resolved"
    assert json.loads(record.read_text())["name"] == "some.invalid"
    config.write_text("provider: local\nnetwork: [pypi.org, 'http://a.test']\n")
    wrong = r"sandboxkit\.yaml.*Egress\.allow='http://a\.test'"
    with pytest.raises(ConfigurationError, match=wrong):
        await SandboxkitSandboxEnvironment.sample_init("test", str(config), {})


@pytest.mark.parametrize("native", [False, True])
async def test_options_of_the_agents_sdk_list_what_a_sandbox_reaches(native: bool) -> None:
    pytest.importorskip("agents")
    from sandboxkit.integrations.openai_agents import SandboxkitClient, SandboxkitClientOptions

    network: Any = {"allow": ["pypi.org"], "native": True} if native else ["some.invalid"]
    options = SandboxkitClientOptions(network=network)
    stored = SandboxkitClientOptions.model_validate_json(options.model_dump_json())
    with e2b_emulator() as server:
        async with Session("e2b" if native else "local") as session:
            client = SandboxkitClient(session)
            async with await client.create(options=stored) as sandbox:
                if native:
                    assert b"http_proxy" not in (await sandbox.exec("env", shell=False)).stdout
                    assert [each["allowOut"] for each in server.state["networks"]] == [["pypi.org"]]
                else:
                    assert (await sandbox.exec(*LOOK, shell=False)).stdout == b"502\n"
            await client.delete(sandbox)
    refused: dict[str, Any] = {
        r"Egress\.allow='10\.0\.0\.1'": ["10.0.0.1"],
        r"network\['credentials'\].*allow, private, log": {"credentials": ["secret"]},
    }
    for named, wrong in refused.items():
        with pytest.raises(ValueError, match=named):
            SandboxkitClientOptions(network=wrong)
