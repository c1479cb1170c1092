"""Repair a program step by step: try candidates in forks of a warm Python, and go on from the best."""

import time
from collections.abc import Sequence

from sandboxkit import Sandbox, Session
from sandboxkit.kernel import Kernel

# The program with its tests. Before it, what takes long in real episodes: imports, data, models.
SET_UP = """
import math, re
table = [math.sqrt(n) for n in range(500_000)]
def fields(text): return text.split(",")
def number(text): return int(text)
def total(text): return sum(number(each) for each in fields(text))
def passes(text, expected):
    try: return total(text) == expected
    except ValueError: return False
def score(): return sum(map(passes, ["1,2", "1;2", "0x10,1", ""], [3, 3, 17, 0]))
"""
# For each step, what a model would propose.
STEPS = [
    [
        "def fields(text): return text.split(';')",
        "def fields(text): return re.split('[,;]', text)",
        "def fields(text): return list(text)",
        "import os; os._exit(1)",  # ends this candidate's Python only
    ],
    [
        "def number(text): return int(text.lstrip('0x'))",
        "def number(text): return abs(int(text))",
        "def number(text): return round(float(text))",
        "def number(text): return int(text, 0)",
    ],
    [
        "def number(text): return 0",
        "def number(text): return int(text or '0', 0)",
        "def number(text): return int(text)",
        "def number(text): return int(text or '1', 0)",
    ],
]


def scores(kernels: Sequence[Kernel], candidates: Sequence[str]) -> list[int]:
    """Run one candidate in each kernel; return how many tests pass."""
    pairs = zip(kernels, candidates, strict=True)
    cells = [kernel.run(f"{code}\nscore()", timeout=10) for kernel, code in pairs]
    return [int(cell.result().text or 0) for cell in cells]


def search_by_forks(sandbox: Sandbox) -> list[list[int]]:
    found = []
    with sandbox.python(ipykernel=False) as origin:  # its end closes all forks
        node = origin
        node.run(SET_UP).result()
        for candidates in STEPS:
            forks = [
                each for each in node.fork(len(candidates)).result() if isinstance(each, Kernel)
            ]
            found.append(scores(forks, candidates))
            node = forks[found[-1].index(max(found[-1]))]
    return found


def search_by_restarts(sandbox: Sandbox) -> list[list[int]]:
    found, chosen = [], SET_UP
    for candidates in STEPS:
        kernels = [sandbox.python(ipykernel=False) for _ in candidates]
        found.append(scores(kernels, [f"{chosen}\n{code}" for code in candidates]))
        for kernel in kernels:
            kernel.close().result()
        chosen += candidates[found[-1].index(max(found[-1]))] + "\n"
    return found


with Session(tags="example:tree") as session, session.sandbox() as sandbox:
    for search in (search_by_forks, search_by_restarts):
        began = time.monotonic()
        print(search(sandbox), f"{search.__name__}: {time.monotonic() - began:.2f} s")
