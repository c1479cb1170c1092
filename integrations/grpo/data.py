"""The rows of a data set: read, validated and tokenized before the run starts."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._tools import SCHEMAS
from sandboxkit.integrations._training.difficulty import curriculum, kept_rewards, task_key
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.swe import Task, bundled_tasks, load_tasks
from sandboxkit.json_lines import read_json_lines

__all__ = [
    "Row",
    "chosen_rows",
    "load_swe_tasks",
    "load_tokenizer",
    "read_rows",
    "row_of",
    "stop_ids",
]


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its task."""

    number: int
    prompt: tuple[int, ...]
    text: str
    prefix: str
    """Text that precedes the completion in the graded submission."""
    task: Mapping[str, Any]  # Any: the whole row; the grader says what it reads


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the model's tokenizer. Raises ConfigurationError if there is none or it has no EOS token."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"tokenizer of {name!r} cannot be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"tokenizer of {name!r} has no eos_token, so a completion has no end: set one"
        )
    return tokenizer


def stop_ids(tokenizer: PreTrainedTokenizerBase, generation: object) -> set[int]:
    """Return the ids that end a completion: those of the tokenizer and of the generation config."""
    named = getattr(generation, "eos_token_id", None)
    more = [] if named is None else [named] if isinstance(named, int) else list(named)
    return {int(tokenizer.eos_token_id), *more}


def load_swe_tasks(source: str, allow_network: Sequence[str] = ()) -> dict[str, Task]:
    """Load the SWE tasks of `data.tasks`; none if it is empty. Raises ConfigurationError."""
    if not source:
        return {}
    return (
        bundled_tasks() if source == "bundled" else load_tasks(source, allow_network=allow_network)
    )


def read_rows(
    path: str,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    tasks: Mapping[str, Task] | None = None,
) -> list[Row]:
    """Read all rows of a file of JSON lines; without a file, one row per SWE task.

    Raises ConfigurationError that names the first bad line, or task.
    """
    rows: list[Row] = []
    for where, value in _entries(path, tasks or {}):
        try:
            rows.append(_row(len(rows), value, tokenizer, config, tasks or {}))
        except ValueError as error:  # ConfigurationError among them
            raise ConfigurationError(f"{where}: {error}") from error
    if not rows:
        raise ConfigurationError(f"data {path!r} has no rows")
    return rows


def _entries(path: str, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Any]]:
    """Yield each row's origin, for error messages, and its value."""
    if tasks and not path:
        for name in tasks:
            yield f"task {name!r}", {"task_id": name}
        return
    for number, value in read_json_lines(path, "data"):
        yield f"data {path!r}, line {number}", value


def chosen_rows(rows: list[Row], config: Config) -> list[Row]:
    """Return the rows that `data.curriculum` chooses, in its order; all rows without one.

    Raises ConfigurationError if it has no records, or leaves no row.
    """
    if not config.data.curriculum:
        return rows
    rewards = kept_rewards(config.data.curriculum)
    keys = [task_key(row.task.get("task_id"), row.text) for row in rows]
    chosen = [rows[index] for index in curriculum(keys, rewards)]
    if not chosen:
        raise ConfigurationError(
            f"data.curriculum={config.data.curriculum!r} leaves none of {len(rows)} rows: all always "
            "pass or always fail; give other data"
        )
    return chosen


def row_of(rows: Sequence[Row], position: int, seed: int | None) -> Row:
    """Return the row at a position of the endless stream, which reshuffles on every pass.

    Without a seed, every pass has the rows' own order.
    """
    epoch, offset = divmod(position, len(rows))
    return rows[offset if seed is None else _order(len(rows), seed, epoch)[offset]]


@functools.lru_cache(maxsize=2)  # with rollouts ahead of training two passes overlap
def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def _row(
    number: int,
    value: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    tasks: Mapping[str, Task],
) -> Row:
    if not isinstance(value, dict):
        raise ConfigurationError(f"a {type(value).__name__}, not an object")
    if tasks and value.get("task_id") not in tasks:
        raise ConfigurationError(
            f"task_id={value.get('task_id')!r} is none of data.tasks; there are {', '.join(tasks)}"
        )
    prompt, prefix = value.get("prompt"), value.get("prefix", "")
    if tasks and prompt is None:
        prompt = [{"role": "user", "content": tasks[value["task_id"]].instruction}]
    if not isinstance(prompt, (str, list)) or not prompt:
        raise ConfigurationError(f"prompt={str(prompt)[:80]!r}: give text, or a list of messages")
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix={str(prefix)[:80]!r}: give text")
    if config.rollout.max_turns > 1 and isinstance(prompt, str):
        raise ConfigurationError(
            "prompt is text, but rollout.max_turns > 1 needs messages, which can be gone on from"
        )
    if isinstance(prompt, str):
        text, ids = prompt, tokenizer(prompt)["input_ids"]
    else:
        text = _rendered(prompt, tokenizer, tools=config.rollout.max_turns > 1)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = config.engine.max_model_tokens - config.rollout.max_completion_tokens
    if not 0 < len(ids) <= room:
        raise ConfigurationError(
            f"the prompt has {len(ids)} tokens, of which engine.max_model_tokens less "
            f"rollout.max_completion_tokens leaves {room}: shorten it, or raise the one"
        )
    size = len(tokenizer)
    if max(ids) >= size:
        raise ConfigurationError(f"token {max(ids)} is beyond the tokenizer's {size}")
    return Row(number, tuple(ids), text, prefix, value)


def _rendered(messages: list[Any], tokenizer: PreTrainedTokenizerBase, *, tools: bool) -> str:
    if not tokenizer.chat_template:
        raise ConfigurationError(
            "the prompt is messages, but the tokenizer has no chat template: "
            "use a chat model, or prompts of text"
        )
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=list(SCHEMAS) if tools else None,
            add_generation_prompt=True,
            tokenize=False,
        )
    except Exception as error:  # a template is a program of its own
        raise ConfigurationError(f"the chat template refuses the prompt: {error}") from error
    return str(text)
