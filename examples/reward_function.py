"""Score five programs for one task, each in a fresh sandbox, with results as they complete.

The expected outputs stay in this process: the program reads a case from stdin, and its output is
compared here. A program that fails or runs too long gets the score 0. After an infrastructure failure
the sample is masked and gets no score.
"""

from dataclasses import dataclass

from sandboxkit import CommandTimeoutError, Process, SandboxError, Session, as_completed

CASES = {"1 2": "3", "-5 5": "0", "20 22": "42"}  # "add two integers"

PROGRAMS = {
    "split": "a, b = input().split(); print(int(a) + int(b))",
    "sum": "print(sum(map(int, input().split())))",
    "slow but right": "import time; time.sleep(0.5); print(sum(map(int, input().split())))",
    "subtracts": "a, b = map(int, input().split()); print(a - b)",
    "never ends": "while True: pass",
}


@dataclass
class Score:
    """The results of one program so far."""

    cases: int = 0
    passed: int = 0
    masked: bool = False


def judge(process: Process, expected: str) -> bool:
    """Whether the program printed the expected output. Raises SandboxError for infrastructure errors."""
    try:
        result = process.result()
    except CommandTimeoutError:
        return False
    return result.returncode == 0 and result.stdout.strip() == expected


scores = {name: Score() for name in PROGRAMS}
with Session(max_concurrency=8, tags="example:reward") as session:
    runs = {
        session.run(["python", "-I", "-c", code], stdin=case, timeout=5): (name, expected)
        for name, code in PROGRAMS.items()
        for case, expected in CASES.items()
    }
    for process in as_completed(list(runs)):
        name, expected = runs[process]
        score = scores[name]
        try:
            score.passed += judge(process, expected)
        except SandboxError as error:
            print(f"{name}: masked, {error}")
            score.masked = True
        score.cases += 1
        if score.cases == len(CASES):
            print(f"{name}: {score.passed} of {score.cases} cases")

counted = [score for score in scores.values() if not score.masked]
total = sum(float(score.passed == score.cases) for score in counted)
print(f"total reward {total:.1f}/{len(counted)}, {100 * total / max(len(counted), 1):.0f} %")
