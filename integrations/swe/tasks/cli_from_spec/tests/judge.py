"""Runs the program and compares what it prints."""

import subject

PROGRAM = ["python3", "/workspace/topwords.py"]
TEXT = "The cat's hat. THE dog's 'tis; the Élan élan x2y — cat's\n"
ALL = "3\tthe\n2\tcat's\n2\télan\n1\tdog's\n1\that\n1\ttis\n1\tx\n1\ty\n"


def outcome(arguments, stdin=TEXT):
    return subject.run([*PROGRAM, *arguments], stdin=stdin)


def test_counts_are_right():
    assert outcome([]) == (0, ALL)
    assert outcome(["-"]) == (0, ALL)
    assert outcome(["-n", "2"]) == (0, "3\tthe\n2\tcat's\n")
    assert outcome(["-n", "0"]) == (0, "")
    assert outcome(["--min-length", "5"]) == (0, "2\tcat's\n1\tdog's\n")
    assert outcome([], "") == (0, "")


def test_ten_words_are_the_default():
    words = [chr(97 + number) * 2 for number in range(12)]
    expected = "".join(f"1\t{word}\n" for word in words[:10])
    assert outcome([], " ".join(words)) == (0, expected)


def test_files_are_read():
    subject.write_file("/tmp/words", "b a b")
    assert outcome(["/tmp/words"], "") == (0, "2\tb\n1\ta\n")


def test_errors_have_their_status():
    for arguments, status in (
        (["/no/such/file"], 1),
        (["-n", "-1"], 2),
        (["-n", "many"], 2),
        (["--min-length", "-3"], 2),
        (["--nope"], 2),
    ):
        assert outcome(arguments) == (status, ""), arguments
