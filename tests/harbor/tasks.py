"""A Harbor task on disk, for the tests: to write 42 where task.toml says that one works."""

import tomllib
from pathlib import Path

FILES = tomllib.loads((Path(__file__).parent / "answer.toml").read_text())
TEST, SOLUTION, SETTINGS = FILES["test"], FILES["solution"], FILES["settings"]
STATUS: str = FILES["status"]
PHASES: str = FILES["phases"]


def write(
    folder: Path,
    *,
    test: str = TEST,
    solution: str = SOLUTION,
    settings: str = SETTINGS,
    dockerfile: str | None = None,
) -> Path:
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
