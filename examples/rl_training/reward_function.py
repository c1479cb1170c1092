"""A binary reward for code in answer tags, graded with HostCompare on cases that the prompt hides.

After an infrastructure failure the reward is None, not 0: mask such a completion.
"""

import asyncio

from sandboxkit import Session
from sandboxkit.integrations.rewards import (
    HostCompare,
    Limits,
    Verdict,
    banned_patterns,
    extract_code,
)

BANNED = ["sorted", ".sort", "heapq"]
TASK = {
    "entry_point": "sort_numbers",
    "cases": [
        {"args": [[3, 1, 2]], "expected": [1, 2, 3]},
        {"args": [[]], "expected": []},
        {"args": [[5, -1, 5]], "expected": [-1, 5, 5]},
    ],
}
COMPLETIONS = {
    "insertion sort": """<answer>
def sort_numbers(numbers):
    result = []
    for number in numbers:
        place = sum(other <= number for other in result)
        result.insert(place, number)
    return result
</answer>""",
    "banned builtin": "<answer>def sort_numbers(numbers): return sorted(numbers)</answer>",
    "ends the process": "<answer>import os; os._exit(0)</answer>",
    "equals everything": """<answer>
class Always(list):
    def __eq__(self, other): return True
def sort_numbers(numbers): return Always()
</answer>""",
    "no answer": "I would sort them.",
}
GRADER = HostCompare(Limits(timeout=10))


async def reward(session: Session, completion: str) -> float | None:
    """Return 1 or 0, or None after an infrastructure failure."""
    code = extract_code(completion)
    if code is None or banned_patterns(code, BANNED):
        return 0.0
    verdict: Verdict = await GRADER.grade(session, code, TASK)
    return verdict.reward


async def main() -> None:
    """Score all completions concurrently."""
    async with Session(max_concurrency=4, tags=("rl-training", "run:1")) as session:
        rewards = await asyncio.gather(*(reward(session, each) for each in COMPLETIONS.values()))
    for name, value in zip(COMPLETIONS, rewards, strict=True):
        print(f"{name}: {value}")


asyncio.run(main())
