"""Each trainer's reward of right and wrong responses, and none when the backend dies."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError
from tests.trainers import drivers, options
from tests.trainers.published import slime
from tests.trl.graders import Refusing

pytestmark = [  # the frameworks' own, when they are imported
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

RIGHT = "```python\ndef add(a, b): return a + b\n```"
WRONG = RIGHT.replace("+", "-")
TASK = {"test_list": ["assert add(2, 3) == 5"]}

DRIVERS: dict[str, tuple[str, Callable[[Path], drivers.Reward]]] = {
    "verl": ("verl", drivers.verl),
    "verl dapo": ("verl", lambda path: drivers.verl(path, "dapo")),
    "openrlhf": ("OpenRLHF", drivers.openrlhf),
    "openrlhf agent": ("OpenRLHF", drivers.openrlhf_agent),
    "slime": ("slime", drivers.slime_single),
    "skyrl": ("SkyRL", drivers.skyrl),
    "nemo gym": ("NeMo Gym", drivers.nemo_gym),
}
each_trainer = pytest.mark.parametrize("name", DRIVERS)
Use = Callable[[Any], None]


@pytest.fixture
def use_provider(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Set the provider of the adapter that is made next."""
    return lambda provider: monkeypatch.setattr(options, "PROVIDER", provider)


def reward_of(name: str, folder: Path, changes: str = "", **given: Any) -> drivers.Reward:
    trainer, driver = DRIVERS[name]
    return driver(drivers.file_of(trainer, folder, changes, **given))


@each_trainer
def test_the_documented_lines_reward_right_and_wrong_responses(name: str, tmp_path: Path) -> None:
    reward = reward_of(name, tmp_path, ", pool=1")
    assert [reward(text, TASK) for text in (RIGHT, WRONG, "no idea")] == [1.0, 0.0, 0.0]


@each_trainer
@pytest.mark.parametrize("policy", ["raise", "retry"])
def test_no_sample_becomes_0_when_the_backend_dies(
    name: str, policy: str, tmp_path: Path, use_provider: Use
) -> None:
    use_provider(provider := Refusing())
    changes = f', extract=whole, on_infra="{policy}", retry_seconds=0.2'
    reward = reward_of(name, tmp_path, changes, grader="Length()")
    assert reward("ab", {}) == 1.0
    assert reward("abc", {}) == 0.0
    provider.refuses = lambda number: True
    with pytest.raises((ProviderUnavailableError, RuntimeError), match=r"no capacity|no reward"):
        reward("abcd", {})


@pytest.mark.parametrize("name", ["openrlhf", "openrlhf agent", "nemo gym"])
def test_a_masked_sample_is_left_out(name: str, tmp_path: Path, use_provider: Use) -> None:
    use_provider(provider := Refusing())
    reward = reward_of(name, tmp_path, ', extract=whole, on_infra="mask"', grader="Length()")
    assert reward("ab", {}) == 1.0
    provider.refuses = lambda number: True
    assert reward("abcd", {}) is None
    provider.refuses = lambda number: False
    assert reward("abc", {}) == 0.0


@pytest.mark.parametrize(("name", "trainer"), [("verl", "verl"), ("skyrl", "SkyRL")])
def test_a_mask_is_refused_if_a_trainer_has_none(name: str, trainer: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, RuntimeError)) as caught:
        reward_of(name, tmp_path, ', on_infra="mask"')
    message = str(caught.value.__cause__ or caught.value)
    assert f"on_infra='mask': {trainer} cannot leave a sample out" in message


def slime_group(folder: Path, texts: list[str], *, group_rm: bool = True) -> list[Any]:
    path = drivers.file_of("slime", folder, ', extract=whole, on_infra="mask"', "Length()")
    group = [slime.Sample(response=text, label="{}") for text in texts]
    return asyncio.run(slime.rewarded(drivers.made(path)["custom_rm"], group, group_rm=group_rm))


def test_slime_leaves_a_sample_out_of_loss_and_mean(tmp_path: Path, use_provider: Use) -> None:
    use_provider(Refusing(lambda number: number == 1))  # the first is that of the first check
    group = slime_group(tmp_path, ["ab", "cd", "abc"])
    known = [s.reward for s in group if not s.remove_sample]
    assert len(known) == 2
    expected = [0.0 if s.remove_sample else s.reward - sum(known) / 2 for s in group]
    assert slime.advantages(group) == pytest.approx(expected)


def test_slime_stops_if_a_group_failed(tmp_path: Path, use_provider: Use) -> None:
    use_provider(Refusing(lambda number: number > 0))
    with pytest.raises(ProviderUnavailableError, match=r"all 2 samples .* no capacity"):
        slime_group(tmp_path, ["ab", "cd"])


def test_slime_without_groups_is_told_that_it_cannot_mask(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="add --group-rm, or give 'raise' or 'retry'"):
        slime_group(tmp_path, ["ab"], group_rm=False)


def test_verls_rate_limited_manager_scores_an_error_0(tmp_path: Path, use_provider: Use) -> None:
    use_provider(provider := Refusing())
    path = drivers.file_of("verl", tmp_path, ", extract=whole", "Length()")
    reward = drivers.verl(path, "rate_limited")
    assert reward("ab", {}) == 1.0
    provider.refuses = lambda number: True
    assert reward("abcd", {}) == 0.0  # where this fails, the document can allow the manager


def test_openrlhf_never_grades_code_of_the_prompt() -> None:
    from sandboxkit.integrations.trainers.openrlhf import _response

    assert _response(f"{RIGHT}\nfine<|im_end|>\n</s>", f"{RIGHT}\n") == "fine"
    assert _response("p```\nx\n```<\uff5cend of sentence\uff5c>", "p") == "```\nx\n```"
    with pytest.raises(ConfigurationError, match="does not start with its prompt"):
        _response(f"{RIGHT[1:]}\nfine", f"{RIGHT}\n")
