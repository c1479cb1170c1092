"""Trainers grade programs: they find the code in an answer, and keep what each case was worth."""

import contextlib
from pathlib import Path

from sandboxkit.integrations._training import records
from sandboxkit.integrations.rewards import Limits
from sandboxkit.integrations.rewards.programs import Program
from sandboxkit.integrations.trl import SandboxReward

CASES = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (1, 2)]


def test_the_code_of_an_answer_is_in_the_graders_language() -> None:
    answer = "```python\nx\n```\n```c++\nint x;\n```\n"
    assert Program("cpp17").extract(answer) == "int x;"
    assert Program("python").extract(answer) == "x"
    assert Program().extract(answer) == "int x;"
    assert Program("java").extract(answer) is None


def test_trl_grades_programs_and_records_their_cases(tmp_path: Path) -> None:
    reward = SandboxReward(
        Program("bash", limits=Limits(timeout=5), partial=True),
        provider="local",
        pool=1,
        records=tmp_path,
    )
    texts = ["echo $(($(cat) * 2))", "echo 4", "echo 5"]
    with contextlib.closing(reward):
        rewards = reward(["p"] * 3, [f"```bash\n{text}\n```" for text in texts], cases=[CASES] * 3)
    assert rewards == [1.0, 0.5, 0.0]
    rows = list(records.read(tmp_path, 1))
    parts = [[part[:3] for part in row["parts"]] for row in rows]
    assert parts[1] == [["1", "failed", 0.0], ["2", "passed", 1.0]]
    assert all(part[4] > 0 for row in rows for part in row["parts"])
