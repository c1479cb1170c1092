"""A Harbor task on disk, for the tests: to write 42 where task.toml says that one works."""

from pathlib import Path

TEST = """\
#!/bin/bash
if [ "$(cat /job/answer.txt)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
SOLUTION = """\
#!/bin/bash
set -e
test "$(cat hint.txt)" = "$HINT"
echo 42 >answer.txt
echo solved
"""
SETTINGS = """\
schema_version = "1.4"
[task]
name = "tests/answer"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
docker_image = "sandboxkit/python:3.11"
network_mode = "no-network"
workdir = "/job"
env = { HINT = "forty-two" }
"""


def write(
    folder: Path,
    *,
    test: str = TEST,
    solution: str = SOLUTION,
    settings: str = SETTINGS,
    dockerfile: str | None = None,
) -> Path:
    """Write the task, and return its folder."""
    for name in ("environment", "tests", "solution"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text("Write 42 into answer.txt.\n")
    (folder / "task.toml").write_text(settings)
    (folder / "environment" / "hint.txt").write_text("forty-two\n")
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "solution" / "solve.sh").write_text(solution)
    if dockerfile is not None:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    return folder


STATUS = """\
import os, urllib.error, urllib.request
proxy = urllib.request.ProxyHandler({"http": os.environ.get("http_proxy", "")})
try:
    urllib.request.build_opener(proxy).open("http://some.invalid/", timeout=30)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("none")
"""
"""A program that prints 502 where `some.invalid` is allowed, 403 where the proxy refuses it, else none."""
PHASES = SETTINGS.replace("[agent]", '[agent]\nnetwork_mode = "no-network"').replace(
    '"no-network"\nworkdir', '"allowlist"\nallowed_hosts = ["some.invalid"]\nworkdir'
)
"""The environment and the tests may reach one name, the agent none."""
