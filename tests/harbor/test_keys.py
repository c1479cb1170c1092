"""Every key of Harbor's task.toml is honoured or refused by its name."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.harbor import load_task
from sandboxkit.integrations.swe import Task
from tests.data_here import beside
from tests.frameworks_here import framework
from tests.harbor.tasks import write

DATA = beside(__file__, "keys.toml")
KEYS = DATA["keys"]


# Any: TOML values, here and below.
def inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {inline(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(base)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


def load(folder: Path, settings: dict[str, Any]) -> Task:
    text = "".join(f"{key} = {inline(value)}\n" for key, value in settings.items())
    return load_task(write(folder, settings=text), allow_network=["internet", "pypi.org"])


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_honoured_or_refused_by_its_name(tmp_path: Path, key: str) -> None:
    case, (*tables, name) = KEYS[key], key.split(".")
    given = {"artifacts": case["value"]} if tables == ["artifacts"] else {name: case["value"]}
    for table in [] if "artifacts" in given else tables[::-1]:
        given = {table: given}
    base = merged(DATA["base"], case.get("with", {}))
    if field := case.get("sets"):
        before, after = load(tmp_path / "a", base), load(tmp_path / "b", merged(base, given))
        assert getattr(before, field) != getattr(after, field)
        return
    with pytest.raises(ConfigurationError, match=name):
        load(tmp_path / "a", merged(base, given))


def test_harbors_own_model_has_no_other_key() -> None:
    config = framework("harbor.models.task.config")
    tables = {
        "": config.TaskConfig,
        "agent.": config.AgentConfig,
        "artifacts.": config.ArtifactConfig,
        "environment.": config.EnvironmentConfig,
        "environment.healthcheck.": config.HealthcheckConfig,
        "solution.": config.SolutionConfig,
        "verifier.": config.VerifierConfig,
    }
    known = {f"{table}{name}" for table, model in tables.items() for name in model.model_fields}
    older = {"version", "environment.memory", "environment.storage"}
    whole = {"agent", "environment", "solution", "verifier"}
    assert known - whole | older == KEYS.keys()
