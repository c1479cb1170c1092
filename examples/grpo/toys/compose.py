"""A coding task small enough for a model of 0.5 M parameters: "add 3 then mul 2" as Python.

The model writes the body of f(x). Its warm start knows the syntax, and little about which word means
which line. Some compositions of two steps are held out: a model solves them only if it has learned
what the words mean.
"""

import functools
import itertools
import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils import logging

from toys.fit import fit

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "//"}
STEPS = [(word, number) for word in SIGNS for number in (2, 3, 5)]
INPUTS = (0, 7, -4, 30, 101)
WORDS = [
    *("<pad>", "<eos>", "\n    ", " ", "x", "=", "return", "then", ":", "task", "f"),
    *SIGNS,
    *SIGNS.values(),
    *("2", "3", "5"),
]
Program = tuple[tuple[str, int], ...]


def prompt(program: Program) -> str:
    """Return the prompt for a program."""
    return f"task {' then '.join(f'{word} {number}' for word, number in program)}:"


def body(program: Program) -> str:
    """Return the body of the solution, to follow `def f(x):`."""
    return "".join(f"\n    x=x{SIGNS[w]}{n}" for w, n in program) + "\n    return x"


def row(program: Program) -> dict[str, Any]:
    """Return a row of the data set, with cases for HostCompare."""

    def value(x: int) -> int:
        for word, number in program:
            x = {"add": x + number, "sub": x - number, "mul": x * number, "div": x // number}[word]
        return x

    cases = [{"args": [x], "expected": value(x)} for x in INPUTS]
    return {
        "prompt": prompt(program),
        "prefix": "def f(x):",
        "entry_point": "f",
        "cases": cases,
    }


def splits() -> tuple[list[Program], list[Program]]:
    """Return rows to train on (repeated single steps and 100 compositions) and 44 held-out rows."""
    singles: list[Program] = [(step,) for step in STEPS]
    pairs: list[Program] = list(itertools.product(STEPS, STEPS))
    random.Random(0).shuffle(pairs)
    return singles * 6 + pairs[:100], pairs[100:]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n    |//|\w+|[^\w]"), "isolated")
    words.decoder = decoders.Fuse()
    words.add_special_tokens(["<pad>", "<eos>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def warm_model(right: float, steps: int = 180) -> Qwen3ForCausalLM:
    """Return a model trained for `steps` on programs, of which the share `right` solve their prompt.

    The others have random steps, so the model knows the syntax but few of its samples are right.
    """
    numbers, words = random.Random(0), tokenizer()
    programs, _ = splits()

    @functools.cache  # there are few texts, and each occurs often
    def ids(text: str) -> list[int]:
        found: list[int] = words(text)["input_ids"]
        return found

    def example() -> tuple[list[int], list[bool]]:
        asked = numbers.choice(programs)
        answered = (
            asked if numbers.random() < right else tuple(numbers.choice(STEPS) for _ in asked)
        )
        question = ids(prompt(asked))
        answer = [*ids(body(answered)), words.eos_token_id]
        return question + answer, [False] * len(question) + [True] * len(answer)

    return fit(words, example, steps)


def write(folder: Path, *, right: float = 0.3, singles_only: bool = False) -> None:
    """Write the model, its tokenizer and the data sets train and held_out to a folder.

    `right` is that of `warm_model`. With `singles_only` train has only the single steps.
    """
    logging.disable_progress_bar()
    warm_model(right).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    train, held_out = splits()
    if singles_only:  # few and quick to learn
        train = train[: len(STEPS)]
    for name, programs in (("train", train), ("held_out", held_out)):
        lines = [json.dumps(row(program)) for program in programs]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
