"""The configuration: read, overridden, saved, and refused with the field, the value, the remedy."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.loop import learning_rate
from sandboxkit.integrations.rewards import HostCompare

NEEDED = ["model.name=m", "data.train=rows.jsonl"]
REFUSED = tomllib.loads((Path(__file__).parent / "refused.toml").read_text())["refused"]
RATES = tomllib.loads((Path(__file__).parent / "rates.toml").read_text())["rates"]


def test_a_file_with_settings_over_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    tables = ('[model]\nname = "from-file"', '[data]\ntrain = "rows.jsonl"', "[optimizer]")
    path.write_text("\n".join([*tables, "lr = 1e-4", "betas = [0.8, 0.9]"]))
    loss = ["objective.loss=dr_grpo", "objective.max_completion_tokens=7"]
    config = read(path, ["optimizer.lr=3e-4", "model.name=mine", "optimizer.warmup=2", *loss])
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


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case["settings"]))
def test_bad_settings_are_named_with_a_remedy(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=case["says"]):
        read(None, [*NEEDED, *case["settings"]])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[run\n")
    for name in ("none.toml", "bad.toml"):
        with pytest.raises(ConfigurationError, match=rf"{name}.* cannot be read"):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["Nothing", "no_such_module:Grader", "Outcome"])
def test_an_invalid_grader_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made"):
        read(None, [*NEEDED, f"grading.grader={name}"]).grader()


@pytest.mark.parametrize("case", RATES, ids=str)
def test_the_learning_rate_warms_up_and_comes_down(case: dict[str, Any]) -> None:
    rates = {int(step): rate for step, rate in case["at"].items()}
    given = ["run.steps=12", "optimizer.warmup=2", "optimizer.lr=1.0"]
    given += [f"optimizer.{name}={case[name]}" for name in case.keys() - {"at"}]
    config = read(None, [*NEEDED, *given])
    assert {step: learning_rate(config, step) for step in rates} == pytest.approx(rates)
