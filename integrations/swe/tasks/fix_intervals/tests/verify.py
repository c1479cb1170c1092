"""Calls the package with cases of which the agent has seen none, each in a fresh process."""

import json
import sys

sys.path.insert(0, "/tests")
import guard

CALL = """
import json, sys
sys.path.insert(0, "/workspace")
name, arguments = json.load(sys.stdin)
import intervals
value = getattr(intervals, name)(*[[tuple(pair) for pair in argument] for argument in arguments])
sys.stdout.write(json.dumps([[type(pair).__name__, *pair] for pair in value]))
"""

CASES = [
    ("merge", [[]], []),
    ("merge", [[[4, 6], [1, 2], [2, 3]]], [[1, 3], [4, 6]]),
    ("merge", [[[1, 10], [2, 3], [4, 5]]], [[1, 10]]),
    ("merge", [[[5, 5], [7, 6], [1, 2]]], [[1, 2]]),
    ("merge", [[[3, 4], [1, 9], [9, 12], [20, 21]]], [[1, 12], [20, 21]]),
    ("subtract", [[[0, 10]], []], [[0, 10]]),
    ("subtract", [[[0, 10]], [[4, 5], [2, 3]]], [[0, 2], [3, 4], [5, 10]]),
    ("subtract", [[[0, 4], [6, 9]], [[3, 7]]], [[0, 3], [7, 9]]),
    ("subtract", [[[0, 4]], [[0, 4]]], []),
    ("subtract", [[[0, 4]], [[-5, 1], [3, 80]]], [[1, 3]]),
]


def the_functions_are_right():
    for name, arguments, expected in CASES:
        status, out = guard.run(["python3", "-c", CALL], stdin=json.dumps([name, arguments]))
        guard.equal(status, 0, f"the exit status of {name}")
        guard.equal(json.loads(out), [["tuple", *pair] for pair in expected], name)


guard.judge(the_functions_are_right)
