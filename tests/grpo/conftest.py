"""Small models and a toy's data, made once for all tests of the trainer, and a session for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import compose

from sandboxkit import Session
from tests.grpo import tiny


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local", max_concurrency=4) as session:
        yield session


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model with random weights."""
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's model and data, cut down to its single steps: 12 prompts of 12 answers."""
    folder = tmp_path_factory.mktemp("toy")
    compose.write(folder, right=0.2, singles_only=True)
    return folder
