"""Reads Terminal-Bench's older task folders, and the results that their tests print."""

import os
import re
from collections.abc import Collection
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.datasets import Folder
from sandboxkit.integrations._extras import needs
from sandboxkit.integrations.swe._task import Task
from sandboxkit.integrations.swe.folder import (
    COMPOSE,
    INTERNET,
    image_and_workdir,
    public_network,
    variables,
)

_MOST = 256 << 10
_USED = ("build", "environment", "image", "volumes", "working_dir")
_IDLE = ("command", "container_name", "expose", "hostname", "init", "restart", "stdin_open", "tty")
"""Keys of a service that keep docker's container running, which a sandbox does by itself."""
_PASSED, _FAILED = ("PASSED", "SKIPPED", "XFAIL"), ("FAILED", "ERROR", "XPASS")
_BLOCKS = {
    "mlebench": ("MLEBench", "ALL TESTS PASSED"),
    "swebench": ("SWEBench", "PASSED"),
    "sweperf": ("SWE-Perf", "PASSED"),
}
"""The name in the lines around other formats' results, and what is between them if all passed."""


def all_passed(parser: str, output: str) -> bool | None:
    """Return whether all tests passed, by the format's name; None if the output has no results."""
    if parser in _BLOCKS:
        name, passed = _BLOCKS[parser]
        pattern = f"{name} results starts here(.*){name} results ends here"
        block = re.search(pattern, output, re.DOTALL)
        return None if block is None else block[1].strip() == passed
    summary = output.partition("short test summary info")[2].split("\n")
    states = [each.split()[0].strip(":") for each in summary if len(each.split()) > 1]
    if not any(each in (*_PASSED, *_FAILED) for each in states):
        return None
    return not any(each in _FAILED for each in states)


def read(
    files: Folder,
    override: str | None,
    in_place: bool | None,
    allow_network: str | Collection[str],
    env_names: Collection[str],
) -> Task:
    """Read a folder with a task.yaml; see `load_task`."""
    name, settings, service = files.path.name, _yaml(files, "task.yaml"), _service(files)
    tests, script = files.subfolder("tests"), files.find("run-tests.sh")
    if tests is None or script is None:
        raise ConfigurationError(f"task {name!r} lacks the folder tests or the file run-tests.sh")
    if (parser := settings.get("parser_name", "pytest")) not in ("pytest", *_BLOCKS):
        raise ValueError(f"parser_name={parser!r} is none of pytest, {', '.join(_BLOCKS)}")
    if settings.get("run_tests_in_same_shell"):
        raise ValueError("run_tests_in_same_shell is not supported here")
    build = service.get("build", ".")
    build = {"context": build} if isinstance(build, str) else build
    _refuse_unknown("build", build, ("context", "dockerfile"))
    named = None if "build" in service else service.get("image")
    where, dockerfile = build.get("context", "."), build.get("dockerfile", "Dockerfile")
    image, workdir = image_and_workdir(files, where, named, override, dockerfile=dockerfile)
    workdir = service.get("working_dir") or workdir or "/app"
    env = service.get("environment", {})
    pairs = env.items() if isinstance(env, dict) else (each.split("=", 1) for each in env)
    env = {key: str(value).replace("${T_BENCH_TEST_DIR}", "/tests") for key, value in pairs}
    network = INTERNET if public_network(allow_network) == INTERNET else None
    return Task(
        id=name,
        instruction=str(settings["instruction"]),
        tests=tests,
        script=files.path / os.fsdecode(script),
        parser=parser,
        image=image,
        build_network=public_network(allow_network),
        workdir=workdir,
        artefacts=(workdir,),
        in_place=bool(in_place),
        agent_timeout=float(settings.get("max_agent_timeout_sec", 360.0)),
        test_timeout=float(settings.get("max_test_timeout_sec", 60.0)),
        env={"TEST_DIR": "/tests", **variables(name, env, env_names)},
        network=network,
        test_network=network,
        reward_decides=True,
        solution=_solution(files),
        metadata={key: value for key, value in settings.items() if key != "instruction"},
    )


def _solution(files: Folder) -> str | None:
    """Return solution.sh, or the commands of solution.yaml as a script."""
    if (script := files.text("solution.sh")) is not None or files.find("solution.yaml") is None:
        return script
    commands = _yaml(files, "solution.yaml", list)
    if any(each.get("append_enter") is False for each in commands):
        raise ValueError("append_enter of solution.yaml: it types into a program, unlike a script")
    return "\n".join(str(each["command"]) for each in commands)


# Any: yaml has no types, here and below.
def _service(files: Folder) -> dict[str, Any]:
    """Return the one service of the compose file. Raises ValueError for several, and for keys not honoured."""
    name = next((name for name in COMPOSE if files.find(name) is not None), None)
    compose = {"services": {"client": {}}} if name is None else _yaml(files, name)
    _refuse_unknown(COMPOSE[0], compose, ("name", "services", "version"))
    services: dict[str, dict[str, Any]] = compose.get("services") or {}
    if len(services) != 1:
        raise ValueError(f"the services {', '.join(services)} of {name}: a task has one sandbox")
    ((name, service),) = services.items()
    _refuse_unknown(name, service, (*_USED, *_IDLE))
    for volume in service.get("volumes", ()):
        if not str(volume).startswith("${T_BENCH_"):  # Terminal-Bench's own, of its logs
            raise ValueError(f"the volume {volume} of {name}: give the image the files")
    return service


def _refuse_unknown(where: str, table: dict[str, Any], known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{key} of {where} is not supported here")


def _yaml(files: Folder, name: str, kind: type = dict) -> Any:
    """Parse a file of YAML. Raises ConfigurationError unless it is valid, and holds a value of this kind."""
    with needs("swe"):
        import yaml  # type: ignore[import-untyped]  # no stubs
    text = files.text(name, most=_MOST) or ""
    try:
        events = yaml.parse(text, yaml.SafeLoader)
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise ValueError("aliases (*name), with which it may grow without bounds")
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise files.refusal(name.encode(), f"is not valid: {error}") from error
    if not isinstance(found, kind):
        raise files.refusal(name.encode(), f"holds no {kind.__name__}")
    return found
