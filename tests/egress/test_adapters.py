"""An egress in the configuration of Inspect, and in that of the OpenAI Agents SDK."""

import json
from pathlib import Path

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
    from sandboxkit.integrations.inspect import SandboxkitSandboxEnvironment

    config = tmp_path / "sandboxkit.yaml"
    config.write_text("provider: local\nnetwork: [some.invalid, '*.github.com:443']\n")
    made = await SandboxkitSandboxEnvironment.sample_init("test", str(config), {})
    try:
        result = await made["default"].exec(LOOK)
    finally:
        await SandboxkitSandboxEnvironment.sample_cleanup("test", str(config), made, False)
    assert result.stdout == "502\n", "the name is allowed, and cannot be resolved"
    record = tmp_path / "egress.jsonl"
    config.write_text(
        f"provider: local\nnetwork: {{allow: [some.invalid], log: {record}, max_connections: 2}}\n"
    )
    made = await SandboxkitSandboxEnvironment.sample_init("test", str(config), {})
    try:
        assert (await made["default"].exec(LOOK)).stdout == "502\n"
    finally:
        await SandboxkitSandboxEnvironment.sample_cleanup("test", str(config), made, False)
    assert json.loads(record.read_text())["name"] == "some.invalid"
    config.write_text("provider: local\nnetwork: [pypi.org, 'http://a.test']\n")
    with pytest.raises(
        ConfigurationError, match=r"sandboxkit\.yaml.*Egress\.allow='http://a\.test'"
    ):
        await SandboxkitSandboxEnvironment.sample_init("test", str(config), {})


async def test_options_of_the_agents_sdk_list_what_a_sandbox_reaches() -> None:
    pytest.importorskip("agents")
    from sandboxkit.integrations.openai_agents import SandboxkitClient, SandboxkitClientOptions

    options = SandboxkitClientOptions(network=["some.invalid"])
    stored = SandboxkitClientOptions.model_validate_json(options.model_dump_json())
    async with Session("local") as session:
        client = SandboxkitClient(session)
        async with await client.create(options=stored) as sandbox:
            result = await sandbox.exec(*LOOK, shell=False)
        await client.delete(sandbox)
    assert result.stdout == b"502\n"
    with pytest.raises(ValueError, match=r"Egress\.allow='10\.0\.0\.1'"):
        SandboxkitClientOptions(network=["10.0.0.1"])


async def test_options_of_the_agents_sdk_ask_for_the_vendors_list() -> None:
    pytest.importorskip("agents")
    from sandboxkit.integrations.openai_agents import SandboxkitClient, SandboxkitClientOptions

    options = SandboxkitClientOptions(network={"allow": ["pypi.org"], "native": True})
    stored = SandboxkitClientOptions.model_validate_json(options.model_dump_json())
    with e2b_emulator() as server:
        async with Session("e2b") as session:
            client = SandboxkitClient(session)
            async with await client.create(options=stored) as sandbox:
                assert b"http_proxy" not in (await sandbox.exec("env", shell=False)).stdout
                assert [each["allowOut"] for each in server.networks] == [["pypi.org"]]
            await client.delete(sandbox)
    with pytest.raises(ValueError, match=r"network\['credentials'\].*allow, private, log"):
        SandboxkitClientOptions(network={"credentials": ["secret"]})


def test_a_bad_value_of_another_option_is_found_in_the_configuration_too() -> None:
    pytest.importorskip("inspect_ai")
    from sandboxkit.integrations.inspect import SandboxkitConfig

    with pytest.raises(ValueError, match="cpus=-1"):
        SandboxkitConfig(cpus=-1)
