"""Builds the program anew and compares what it prints for lines the agent has not seen."""

import os
import sys

sys.path.insert(0, "/tests")
import guard

CASES = [
    ("3 4 + 2 *", "14"),
    ("10 4 -", "6"),
    ("9 2 /", "4"),
    ("4294967296 2 *", "8589934592"),
    ("-7 2 +", "-5"),
    ("010 1 +", "11"),
    ("1 0 /", "error"),
    ("+", "error"),
    ("1 2", "error"),
    ("1 2 +x", "error"),
    ("", "error"),
    (" ".join(["1"] * 80), "error"),
    (" ".join(["1"] * 64 + ["+"] * 63), "64"),
    ("5", "5"),
]


def it_builds_without_warnings():
    for name in ("calc", "main.o", "stack.o"):
        try:
            os.remove(f"/workspace/{name}")
        except FileNotFoundError:
            pass
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    status, _ = guard.run([*compiler, "main.c", "stack.c"], timeout=120)
    guard.equal(status, 0, "the status of the compiler")
    status, _ = guard.run(["make"], timeout=120)
    guard.equal(status, 0, "the status of make")


def values_are_right():
    for line, expected in CASES:
        status, out = guard.run(["/workspace/calc"], stdin=line + "\n")
        guard.equal((status, out), (0, expected + "\n"), f"the value of {line[:20]!r}")


guard.judge(it_builds_without_warnings, values_are_right)
