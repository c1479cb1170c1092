"""The adapters' options name stored datasets by their digests."""

from pathlib import Path

import pytest

from sandboxkit import (
    ConfigurationError,
    Dataset,
    DatasetNotFoundError,
    SandboxSpec,
    Session,
    _spec,
)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "source").mkdir()
    return Dataset(tmp_path / "source")


def test_inspects_configuration_has_mounts(dataset: Dataset) -> None:
    pytest.importorskip("yaml")
    from sandboxkit.integrations.inspect import SandboxkitConfig

    config = SandboxkitConfig(mounts={"/data": dataset.digest})
    assert _spec.build(SandboxSpec(), config.options()).mounts == {"/data": dataset.digest}


def test_the_openai_agents_options_have_mounts(dataset: Dataset) -> None:
    pytest.importorskip("agents.sandbox")
    from sandboxkit.integrations.openai_agents import SandboxkitClientOptions

    options = SandboxkitClientOptions(mounts={"/data": dataset.digest})
    assert _spec.build(SandboxSpec(), options.options()).mounts == {"/data": dataset.digest}
    assert SandboxkitClientOptions.model_validate_json(options.model_dump_json()) == options


def test_an_invalid_digest_is_refused_at_once(dataset: Dataset) -> None:
    with Session("local") as session, pytest.raises(ConfigurationError, match="mounts"):
        session.sandbox(mounts={"/data": dataset.digest[:-1]})


def test_an_unknown_digest_is_refused_when_the_sandbox_starts(dataset: Dataset) -> None:
    with Session("local") as session:
        sandbox = session.sandbox(mounts={"/data": f"sha256:{'0' * 64}"})
        with pytest.raises(DatasetNotFoundError, match="is stored in"):
            sandbox.start().result(30)
