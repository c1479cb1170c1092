"""A task with tools: the model writes a program, runs a check, reads its output and fixes the program.

The prompt does not specify the function f; only the check in the sandbox does, after a wrong attempt.
A model that ignores the tool's output is therefore right in one of twelve rollouts.
"""

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toys import compose
from toys.fit import fit

OPEN = """<tool_call>{"name": "bash", "arguments": {"command": "echo 'f=lambda x:x"""
CLOSE = """' > s.py; python3 check.py"}}</tool_call>"""
CHECK = (
    "import s\nprint('ok' if all(s.f(x) == x{sign}{number} for x in (0, 7, -4, 30)) else '{hint}')"
)
WORDS = [
    *("<unk>", "<pad>", "<end>", "<user>", "<tool>", "<assistant>", OPEN, CLOSE),
    *("repair", "ok", "done", *compose.SIGNS, *compose.SIGNS.values(), "2", "3", "5"),
]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PROMPT = [{"role": "user", "content": "repair"}]
RIGHT = 0.3


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word, and one each for the beginning and end of a tool call."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    )
    words.decoder = decoders.Fuse()
    words.add_special_tokens([AddedToken(word, special=True) for word in WORDS[1:6]])
    words.add_tokens([AddedToken(word, normalized=False) for word in (OPEN, CLOSE)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )
    made.chat_template = TEMPLATE
    return made


def attempt(step: tuple[str, int]) -> str:
    """Return a turn of the model that writes the program for a step and runs the check."""
    return f"{OPEN}{compose.SIGNS[step[0]]}{step[1]}{CLOSE}<end>"


def write(folder: Path, steps: int = 200) -> None:
    """Write a model that was pretrained on such dialogues, of which the share RIGHT end with a right fix.

    Also writes its tokenizer and data set.
    """
    numbers, words = random.Random(0), tokenizer()

    def example() -> tuple[list[int], list[bool]]:
        wanted, tried = numbers.choice(compose.STEPS), numbers.choice(compose.STEPS)
        parts = [("<user>repair<end><assistant>", False), (attempt(tried), True)]
        while tried != wanted and len(parts) < 6:
            parts.append((f"<tool>{wanted[0]} {wanted[1]}\n<end><assistant>", False))
            tried = wanted if numbers.random() < RIGHT else numbers.choice(compose.STEPS)
            parts.append((attempt(tried), True))
        if tried == wanted:
            parts += [("<tool>ok\n<end><assistant>", False), ("done<end>", True)]
        ids, own = list[int](), list[bool]()
        for text, mine in parts:
            ids += words(text)["input_ids"]
            own += [mine] * (len(ids) - len(own))
        return ids, own

    fit(words, example, steps).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    rows = [json.dumps(row(step)) for step in compose.STEPS]
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")


def row(step: tuple[str, int]) -> dict[str, Any]:
    """Return a row of the data set; all have the same prompt. The check is a file of the sandbox."""
    word, number = step
    check = CHECK.format(sign=compose.SIGNS[word], number=number, hint=f"{word} {number}")
    cases = compose.row((step,))["cases"]
    files = {"/workspace/check.py": check}
    return {"prompt": PROMPT, "files": files, "entry_point": "f", "cases": cases}
