"""Calls the package with cases of which the agent has seen none, each in a fresh process."""

import json

import subject

CALL = """
import json, sys
sys.path.insert(0, "/workspace")
name, arguments = json.load(sys.stdin)
import intervals
value = getattr(intervals, name)(*[[tuple(pair) for pair in argument] for argument in arguments])
shown = [type(value).__name__, [[type(pair).__name__, *pair] for pair in value]]
sys.stdout.write(json.dumps(shown))
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


def test_the_functions_are_right():
    for name, arguments, expected in CASES:
        call = json.dumps([name, arguments])
        status, out = subject.run(["python3", "-I", "-c", CALL], stdin=call)
        assert status == 0, f"{name} fails"
        # As text: in JSON, unlike in Python, true and 1.0 are not 1.
        assert out == json.dumps(["list", [["tuple", *pair] for pair in expected]]), name
