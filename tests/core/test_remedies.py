"""What a newcomer does wrong first is told with what to do instead."""

import subprocess
import sys

import pytest

from sandboxkit import ConfigurationError, MissingExtraError, Sandbox, Session


def test_a_sandbox_made_without_a_session_names_the_session() -> None:
    with pytest.raises(ConfigurationError, match=r"Session\(\)\.sandbox\("):
        Sandbox()  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="from_id"):
        Sandbox(image="python:3.11")  # type: ignore[call-arg]


def test_reading_output_like_a_file_names_the_remedy() -> None:
    with Session("local") as session:
        process = session.run(["true"])
        with pytest.raises(ConfigurationError, match=r"result\(\)"):
            process.stdout.read()
        assert process.result().stdout == ""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("sandboxkit.integrations.trl", "trl", "trl"),
        ("sandboxkit.integrations.inspect", "inspect_ai", "inspect"),
        ("sandboxkit.integrations.openai_agents", "agents", "openai-agents"),
        ("sandboxkit.integrations.smolagents", "smolagents", "smolagents"),
    ],
)
def test_an_integration_without_its_package_names_the_extra(
    module: str, package: str, extra: str
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("sandboxkit.errors.MissingExtraError: ")
    assert f"needs the package {package!r}: pip install 'sandboxkit-sdk[{extra}]'" in last
    assert issubclass(MissingExtraError, ImportError)
