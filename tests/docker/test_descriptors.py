"""A process that may open no more files is told so, and not that Docker is down."""

import os
import subprocess
import sys

import pytest

CODE = """
import resource
from sandboxkit import SandboxError, Session
from sandboxkit.providers.docker import DockerProvider
with Session(DockerProvider()) as session:
    session.diagnose().result()
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
    sandboxes = [session.sandbox() for _ in range(20)]
    errors = [each.start().exception(60) for each in sandboxes]
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
    for each in errors:
        print(each)
"""


@pytest.mark.usefixtures("daemon")
def test_the_limit_of_open_files_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )
    output = done.stdout.splitlines()
    assert output, done.stderr
    assert [line for line in output if "Docker daemon at" in line and "start it" in line] == []
    assert any("30 open files" in line and "ulimit -n" in line for line in output), output
