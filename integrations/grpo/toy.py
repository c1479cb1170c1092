"""A toy: a coding task small enough for a model of 0.4 M parameters: "add 3 then mul 2" as Python.

The model writes the body of f(x). Its warm start knows the form, and little of which word means
which line. Some compositions of two steps are held out: only who has learned the words solves them.
"""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

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
_BATCH = 64


def prompt(program: Program) -> str:
    """What the model is asked."""
    return f"task {' then '.join(f'{word} {number}' for word, number in program)}:"


def body(program: Program) -> str:
    """A solution, after `def f(x):`."""
    return "".join(f"\n    x=x{SIGNS[w]}{n}" for w, n in program) + "\n    return x"


def row(program: Program) -> dict[str, Any]:
    """A row of the data set, with cases for HostCompare."""

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
    """To train on: single steps, each several times, and 100 compositions; held out: 44."""
    singles: list[Program] = [(step,) for step in STEPS]
    pairs: list[Program] = list(itertools.product(STEPS, STEPS))
    random.Random(0).shuffle(pairs)
    return singles * 6 + pairs[:100], pairs[100:]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n    |//|\w+|[^\w]"), "isolated")
    words.decoder = decoders.Fuse()
    words.add_special_tokens(["<pad>", "<eos>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def warm_model(right: float, steps: int = 200) -> Qwen3ForCausalLM:
    """A model that learnt the form of programs; of those it saw a share of `right` did as asked.

    The others had random steps, so it gets few right when it samples.
    """
    numbers, words = random.Random(0), tokenizer()
    programs, _ = splits()

    def example() -> tuple[list[int], list[bool]]:
        asked = numbers.choice(programs)
        told = asked if numbers.random() < right else tuple(numbers.choice(STEPS) for _ in asked)
        question = words(prompt(asked))["input_ids"]
        answer = [*words(body(told))["input_ids"], words.eos_token_id]
        return question + answer, [False] * len(question) + [True] * len(answer)

    return fit(words, example, steps)


def fit(
    words: PreTrainedTokenizerFast,
    example: Callable[[], tuple[list[int], list[bool]]],
    steps: int = 200,
) -> Qwen3ForCausalLM:
    """A new model, trained on examples: token ids, and which of them are its own to write."""
    torch.set_num_threads(1)  # it is too small for two to be faster
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=128,
            pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(steps):
        examples = [example() for _ in range(_BATCH)]
        longest = max(len(ids) for ids, _ in examples)
        ids_BT = torch.full((_BATCH, longest), words.pad_token_id, dtype=torch.long)
        labels_BT = torch.full_like(ids_BT, -100)
        for index, (ids, own) in enumerate(examples):
            ids_BT[index, : len(ids)] = torch.tensor(ids)
            labels_BT[index, : len(ids)] = torch.tensor(ids).where(torch.tensor(own), -100)
        mask_BT = (ids_BT != words.pad_token_id).long()
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        model(input_ids=ids_BT, attention_mask=mask_BT, labels=labels_BT).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def write(folder: Path, *, right: float = 0.3, singles_only: bool = False) -> None:
    """The model, its tokenizer and the two data sets, in a folder."""
    warm_model(right).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    train, held_out = splits()
    if singles_only:  # few and quick to learn
        train = train[: len(STEPS)]
    for name, programs in (("train", train), ("held_out", held_out)):
        lines = [json.dumps(row(program)) for program in programs]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
