"""Runs the program and compares what it prints."""

import sys

sys.path.insert(0, "/tests")
import guard

PROGRAM = ["python3", "/workspace/topwords.py"]
TEXT = "The cat's hat. THE dog's 'tis; the Élan élan x2y — cat's\n"
ALL = "3\tthe\n2\tcat's\n2\télan\n1\tdog's\n1\that\n1\ttis\n1\tx\n1\ty\n"


def output(arguments, stdin=TEXT):
    status, out = guard.run([*PROGRAM, *arguments], stdin=stdin)
    guard.equal(status, 0, f"the exit status with {arguments}")
    return out


def counts_are_right():
    guard.equal(output([]), ALL, "the output")
    guard.equal(output(["-"]), ALL, "the output for -")
    guard.equal(output(["-n", "2"]), "3\tthe\n2\tcat's\n", "-n 2")
    guard.equal(output(["-n", "0"]), "", "-n 0")
    guard.equal(output(["--min-length", "5"]), "2\tcat's\n1\tdog's\n", "--min-length")
    guard.equal(output([], ""), "", "the output for no input")
    many = "".join(f"{chr(97 + i)}{chr(97 + i)} " for i in range(12))
    guard.equal(len(output([], many).splitlines()), 10, "the default count")


def files_are_read():
    with open("/tmp/words", "w", encoding="utf-8") as file:
        file.write("b a b")
    guard.equal(output(["/tmp/words"], ""), "2\tb\n1\ta\n", "a file's words")


def errors_have_their_status():
    for arguments, expected in (
        (["/no/such/file"], 1),
        (["-n", "-1"], 2),
        (["-n", "many"], 2),
        (["--min-length", "-3"], 2),
        (["--nope"], 2),
    ):
        status, out = guard.run([*PROGRAM, *arguments])
        guard.equal((status, out), (expected, ""), f"the outcome with {arguments}")


guard.judge(counts_are_right, files_are_read, errors_have_their_status)
