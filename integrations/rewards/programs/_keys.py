"""Tables of the keys of a task and of its cases, and of other data sets' names for these keys."""

from typing import Literal

KeyKind = Literal[
    "text", "name", "cases", "number", "from 0", "whole", "checker", "interactor", "texts", "files",
    "trust",
]  # fmt: skip
"""The type of a value; `_problem.py` has a check for each."""

TASK_KEYS: dict[str, tuple[KeyKind, str]] = {
    "cases": ("cases", "inputs and expected outputs"),
    "language": ("name", "the language of the submission"),
    "time_limit": ("number", "CPU time limit of one case in seconds, for a native program"),
    "memory_limit_mb": ("whole", "memory limit of one case in MiB"),
    "checker": ("checker", "decides whether an output is right"),
    "rel_tol": ("from 0", "relative tolerance for numbers in the output"),
    "abs_tol": ("from 0", "absolute tolerance for numbers in the output"),
    "interactor": ("interactor", "the program that the submission talks to"),
    "tests": ("text", "source that is appended to the submission and fails by its exit status"),
    "trust": ("trust", "'shared' for `tests`, which run in the submission's process"),
}
CASE_KEYS: dict[str, tuple[KeyKind, str]] = {
    "stdin": ("text", "the program's input; with an interactor, the interactor's input"),
    "stdout": ("text", "the expected output; with an interactor, the expected answer"),
    "args": ("texts", "the program's arguments"),
    "files": ("files", "files in the program's folder, by name"),
    "outputs": ("files", "files that the program must write, by name"),
    "weight": ("from 0", "the case's share of the score with partial=True"),
    "name": ("text", "the case's name in the verdict's parts"),
}

TASK_WORDS = {
    "inputs": "cases",
    "outputs": "cases",
    "input_output": "cases, as load_taco or load_apps makes them",
    "public_tests": "cases, as load_code_contests makes them",
    "private_tests": "cases, as load_code_contests makes them",
    "public_test_cases": "cases, as load_live_code_bench makes them",
    "private_test_cases": "cases, as load_live_code_bench makes them",
    "test_case": "cases",
    "test_cases": "cases",
    "testcases": "cases",
    "timeout": "time_limit",
    "time_limit_ms": "time_limit, in seconds",
    "memory_limit": "memory_limit_mb",
    "memory_mb": "memory_limit_mb",
    "lang": "language",
    "programming_language": "language",
    "rtol": "rel_tol",
    "atol": "abs_tol",
    "eps": "abs_tol",
    "epsilon": "abs_tol",
    "tolerance": "rel_tol or abs_tol",
    "test": "tests",
    "validator": "checker",
    "output_validator": "checker",
    "special_judge": "checker",
    "spj": "checker",
    "partial": "the grader's option partial=True",
}
"""Other data sets' names for the keys of a task, and what to write instead."""
CASE_WORDS = {
    "input": "stdin",
    "output": "stdout",
    "expected": "stdout",
    "expected_output": "stdout",
    "answer": "stdout",
    "arguments": "args",
    "argv": "args",
    "points": "weight",
    "score": "weight",
    "rel_tol": "it in the task, for all cases",
    "abs_tol": "it in the task, for all cases",
    "checker": "it in the task, for all cases",
    "time_limit": "it in the task, for all cases",
}
"""Other data sets' names for the keys of a case, and what to write instead."""

REMEDIES: dict[KeyKind, str] = {
    "text": "text",
    "name": "the name of a language, such as 'cpp17', or a Language",
    "cases": "a list of objects with stdin and stdout",
    "number": "a positive number",
    "from 0": "a number >= 0",
    "whole": "a positive whole number of MiB",
    "checker": (
        "'exact', 'lines', 'tokens', 'floats' or 'unordered_lines', a function of (stdin, output, "
        "expected), or a JudgeProgram"
    ),
    "interactor": "a JudgeProgram with the interactor's source",
    "texts": "a list of text",
    "files": "an object that maps plain file names to text",
    "trust": "'shared'",
}
"""The end of an error message ("give ...") for a value of the wrong type."""
