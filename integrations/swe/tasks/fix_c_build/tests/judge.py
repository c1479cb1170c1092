"""Builds the program anew and compares what it prints for lines the agent has not seen."""

import subject

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


def test_it_builds_without_warnings():
    for name in ("calc", "main.o", "stack.o"):
        subject.remove(f"/workspace/{name}")
    # Before make, which runs whatever the Makefile says.
    compiler = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    status, _ = subject.run([*compiler, "main.c", "stack.c"], timeout=120)
    assert status == 0, "the compiler refuses it"
    status, _ = subject.run(["make"], timeout=120)
    assert status == 0, "make fails"


def test_values_are_right():
    for line, expected in CASES:
        outcome = subject.run(["/workspace/calc"], stdin=line + "\n")
        assert outcome == (0, expected + "\n"), f"the value of {line[:20]!r}"
