"""The configuration: read, overridden, saved, and refused with the field, the value, the remedy."""

import json
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.rewards import HostCompare

NEEDED = ["model.name=m", "data.train=rows.jsonl"]


def test_a_file_with_settings_over_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[model]\nname = "from-file"\n[data]\ntrain = "rows.jsonl"\n'
        "[optimizer]\nlr = 1e-4\nbetas = [0.8, 0.9]\n"
    )
    config = read(path, ["optimizer.lr=3e-4", "model.name=mine", "objective.loss=dr_grpo",
                         "objective.max_completion_tokens=7", "optimizer.warmup=2"])  # fmt: skip
    assert (config.model.name, config.optimizer.lr, config.optimizer.warmup) == ("mine", 3e-4, 2)
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.objective.loss == "dr_grpo"
    assert json.loads(config.to_json())["optimizer"]["lr"] == 3e-4


def test_the_grader_is_made_with_its_options() -> None:
    config = read(None, [*NEEDED, "grading.options={partial=true, limits={retries=0}}"])
    grader = config.grader()
    assert isinstance(grader, HostCompare)
    assert grader.partial
    assert grader.limits.retries == 0


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rollout.group_size=1", r"rollout.group_size=1: .* give 2 or more"),
        (
            "optimizer.max_tokens_per_row=100",
            "max_tokens_per_row=100 is less than one.*max_model_tokens=2048",
        ),
        ("rollout.max_completion_tokens=2048", "leaves no room for a prompt"),
        ("optimizer.lr=0", r"optimizer.lr=0.0: give a number above 0"),
        ("optimizer.lr=nan", r"optimizer.lr=nan: give a finite number"),
        ("optimizer.lr=fast", r"optimizer.lr='fast' is a str: give a float"),
        ("run.steps=1.5", r"run.steps=1.5 is a float: give a int"),
        ("run.steps=true", r"run.steps=True is a bool"),
        ("run.steps=0", r"run.steps=0: give 1 or more"),
        ("optimizer.betas=[0.9]", "give two numbers"),
        ("model.nam=x", r"model.nam='x': no such field; there are name"),
        ("models.name=x", r"models=.*: no such field"),
        ("objective.loss=ppo", r"objective.loss='ppo': use one of grpo"),
        ("objective.clip_low=2", r"objective.clip_low=2.0: give a share"),
        ("engine.kind=tgi", r"engine.kind='tgi': use one of hf, vllm, vllm_server"),
        ("engine.kind=vllm_server", r"with engine.urls=\[\]: give urls for vllm_server"),
        ('engine.urls=["http://a:1"]', r"engine.kind='hf' with .*give urls for vllm_server"),
        ("engine.timeout=0", r"engine.timeout=0.0: give a number above 0"),
        ("engine.gpu_memory_utilization=1.5", "give a share above 0, up to 1"),
        ("model.name=", r"model.name='': give a folder or a name"),
        ("rollout.artefact=solution.py", "absolute path"),
        ("grading.max_infra_failed_rate=2", "a share from 0 to 1"),
        ("lr=3", r"--set 'lr=3': give section.field=value"),
    ],
)
def test_bad_values_are_named_with_a_remedy(setting: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read(None, [*NEEDED, setting])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ['engine.urls=["localhost:8000"]'],
            "'localhost:8000'.*: give different URLs such as http://",
        ),
        (['engine.urls=["http://a:1/v1"]'], "'http://a:1/v1'.*: give different URLs"),
        (["engine.urls=[7]"], r"engine.urls=\[7\]: give different URLs"),
        (['engine.urls=["http://a:1", "http://a:1"]'], "give different URLs"),
        (
            ['engine.urls=["http://a:1"]', "engine.folder=/none"],
            "engine.folder='/none' is no folder",
        ),
    ],
)
def test_bad_settings_of_servers_are_named(settings: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read(None, [*NEEDED, "engine.kind=vllm_server", *settings])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.toml.* cannot be read"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(ConfigurationError, match=r"bad.toml.* cannot be read"):
        read(tmp_path / "bad.toml")


@pytest.mark.parametrize("name", ["Nothing", "no_such_module:Grader", "Outcome"])
def test_an_invalid_grader_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made"):
        read(None, [*NEEDED, f"grading.grader={name}"]).grader()
