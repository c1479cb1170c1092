"""An id tells its provider; several providers are asked at once, and silent ones are named."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit.cli import _configured
from tests.cli.conftest import Cli, environment
from tests.docker_here import require_docker

HOSTED = ("DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN", "E2B_API_KEY", "KUBECONFIG", "MODAL_TOKEN_ID")


@pytest.fixture
def container(cli: Cli, tag: str) -> Iterator[str]:
    """The id of a detached sandbox of docker, where local is the default."""
    require_docker()
    script = "echo from-main; sleep 300"
    started = cli("run", "-p", "docker", "-d", "--lifetime", "5m", "--tag", tag, "sh", "-c", script)
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip()
    cli("stop", "-p", "docker", started.stdout.strip())


def test_an_id_is_found_at_its_provider(cli: Cli, container: str, detached: str, tag: str) -> None:
    assert set(cli("ls", "-q", "--tag", tag).stdout.split()) == {container, detached}
    assert cli("exec", container, "sh", "-c", "echo kept > note; cat note").stdout == "kept\n"
    assert cli("cp", f"{container}:/workspace/note", "-").stdout == "kept\n"
    assert cli("logs", container).stdout == "from-main\n"
    assert json.loads(cli("inspect", container).stdout)["provider"] == "docker"
    stopped = cli("stop", container, detached)
    assert stopped.stdout == f"{container}\n{detached}\n"
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_what_has_no_key_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HOSTED, "KUBERNETES_SERVICE_HOST", "MODAL_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "local")
    assert _configured.lacking("e2b") == "$E2B_API_KEY is not set"
    assert not {"daytona", "e2b", "kubernetes", "modal"} & set(_configured.names())
    code = (
        "import sys; from sandboxkit.cli import main; main(['ls', '--tag', 'none:such']); "
        "print({'daytona', 'e2b', 'yaml', 'modal'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.stdout == "set()\n"
    monkeypatch.setenv("E2B_API_KEY", "e2b_key")
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "modal")
    assert _configured.names()[0] == "modal"
    assert {"e2b", "modal"} <= set(_configured.names())
