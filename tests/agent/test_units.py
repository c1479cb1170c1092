"""The agent's own unit tests pass, and vet finds nothing in its source."""

import os
import runpy
import subprocess
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent"
OFFLINE = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off"}


@pytest.mark.timeout(900)  # on a busy machine, with nothing compiled yet
@pytest.mark.parametrize("check", ["vet", "test"])
def test_the_source_of_the_agent_passes(check: str) -> None:
    go = runpy.run_path(str(AGENT / "build.py"))["find_go"]()
    done = subprocess.run(
        [go, check, "./..."],
        cwd=AGENT,
        env={**os.environ, **OFFLINE, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
