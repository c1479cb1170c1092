"""A `rollout_func` for TRL that runs the tool calls of all rollouts concurrently."""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
)

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import plain, plain_row
from sandboxkit.integrations._tools import ToolError, refusal, truncate_middle
from sandboxkit.integrations._training.rollout_record import Turn
from sandboxkit.integrations.trl._rollout import RolloutEnvironment, Trace, tools_of

# Any: TRL's messages.
Message = dict[str, Any]
_MAX_ERROR = 1000


@dataclass
class _Rollout:
    """One rollout: its tokens, and a mask that is 1 for each token that the model generated."""

    environment: RolloutEnvironment
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)
    """The tool calls of the last turn."""

    def add(self, ids: Sequence[int], mask: int, logprobs: Sequence[float] | None) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


class SandboxRollouts:
    """Runs all rollouts of a batch turn by turn: one batched generation, then concurrent tool calls.

        with SandboxEnvironments(judge, provider="docker") as environments:
            GRPOTrainer(
                rollout_func=SandboxRollouts(environments), reward_funcs=EnvironmentReward(), ...
            ).train()

    With `environment_factory` TRL makes the tool calls of a batch sequentially; here a turn takes as
    long as its slowest rollout. The chat template and its tools, `max_completion_length` for the
    completion including the tools' results (which are not trained on), and
    `max_tool_calling_iterations` work as in TRL. TRL passes only prompts, so each row is looked up in
    the trainer's data sets. If prompts are not unique there, give a function `row` that returns the row
    of a prompt. Prompts must be messages, without images; text raises ConfigurationError.
    """

    def __init__(
        self,
        environments: Callable[[], RolloutEnvironment],
        *,
        row: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        self._environments = environments
        self._row = row
        self._pool: list[RolloutEnvironment] = []
        self._dialogue: _Dialogue | None = None

    # Any: TRL's trainer, whose types are incomplete, and its arguments.
    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Run one rollout per prompt and return what TRL expects of a `rollout_func`.

        TRL has already repeated a group's prompt for each of its rollouts.
        """
        dialogue = self._dialogue = self._dialogue or _Dialogue(trainer)
        self._row = self._row or RowsByPrompt(trainer)
        while len(self._pool) < len(prompts):
            self._pool.append(self._environments())
        rollouts: list[_Rollout] = []
        for prompt, environment in zip(prompts, self._pool, strict=False):
            text = environment.reset(**self._row(prompt)) or ""
            rollouts.append(_Rollout(environment, dialogue.opening(prompt, environment, text)))
        has_logprobs = self._run(rollouts, dialogue)
        return {
            "prompt_ids": [each.prompt_ids for each in rollouts],
            "completion_ids": [each.ids for each in rollouts],
            "logprobs": [each.logprobs for each in rollouts] if has_logprobs else None,
            "env_mask": [each.mask for each in rollouts],
            "environments": [each.environment for each in rollouts],
        }

    def _run(self, rollouts: list[_Rollout], dialogue: "_Dialogue") -> bool:
        """Run all turns of all rollouts; return whether the engine reports log probabilities."""
        has_logprobs = dialogue.turn(rollouts)
        active = [each for each in rollouts if each.calls]
        turns = 0
        with ThreadPoolExecutor(len(rollouts), "sandbox-rollouts") as threads:
            while active and turns < dialogue.max_turns:
                replies = list(threads.map(_act, active))
                active = [
                    each
                    for each, answers in zip(active, replies, strict=True)
                    if dialogue.add_results(each, answers)
                ]
                if active:
                    dialogue.turn(active)
                active = [each for each in active if each.calls]
                turns += 1
        return has_logprobs


# Any: TRL's trainer, and rows of a user's data set.
class RowsByPrompt:
    """Finds rows in a trainer's data sets by their prompt. Keeps only a digest and the index of each row.

    Raises ConfigurationError for a streamed data set, and for different rows with the same prompt.
    """

    def __init__(self, trainer: Any) -> None:
        evaluated = trainer.eval_dataset
        others = evaluated.values() if isinstance(evaluated, Mapping) else [evaluated]
        self._places: dict[bytes, tuple[Any, int]] = {}
        for dataset in (trainer.train_dataset, *others):
            if dataset is not None:
                self._add(dataset)

    def __call__(self, prompt: Any) -> dict[str, Any]:
        """Return the row with this prompt. Raises ConfigurationError if there is none."""
        place = self._places.get(_key(prompt))
        if place is None:
            raise ConfigurationError(
                f"no row of the data sets has the prompt {str(prompt)[:80]}; give "
                "SandboxRollouts a function row= that finds it"
            )
        dataset, index = place
        return plain_row(dataset[index])

    def _add(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__"):
            raise ConfigurationError(
                "rows of a streamed data set cannot be looked up by their prompt; give "
                "SandboxRollouts a function row= that finds them"
            )
        for index, row in enumerate(dataset):
            known, at = self._places.setdefault(_key(row["prompt"]), (dataset, index))
            if plain_row(known[at]) != plain_row(row):
                raise ConfigurationError(
                    f"two rows differ and have the same prompt {str(row['prompt'])[:80]}; give "
                    "SandboxRollouts a function row=, or prompts that differ"
                )


def _key(prompt: Any) -> bytes:
    return hashlib.blake2b(
        repr(plain(prompt)).encode(errors="surrogatepass"), digest_size=16
    ).digest()


def _act(rollout: _Rollout) -> list[Message]:
    """Run the tool calls of a rollout's last turn sequentially."""
    tools = {tool.__name__: tool for tool in tools_of(rollout.environment)}
    return [_answer(tools, call, rollout.environment._trace) for call in rollout.calls]


def _answer(tools: Mapping[str, Callable[..., str]], call: Message, trace: Trace) -> Message:
    name, made, begun = "?", len(trace.calls), time.monotonic()
    try:
        function = call["function"]
        name, arguments = str(function["name"])[:80], function.get("arguments") or {}
        if name not in tools:
            raise ToolError(f"there is no tool {name!r}; there are {', '.join(tools)}")
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        content = tools[name](**given)
    except Exception as error:  # noqa: BLE001 - as in TRL, the model sees the error of its call
        content = refusal(truncate_middle(str(error), _MAX_ERROR)).text
        if len(trace.calls) == made:  # no tool was run
            trace.add_call(name, {"call": call}, content, True, begun)
    return {"role": "tool", "name": name, "content": content}


class _Dialogue:
    """Generates turns and appends tool results, with a trainer's model, tokenizer and chat template."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._limit: int = trainer.max_completion_length
        self._context: int = getattr(trainer.model.config, "max_position_embeddings", 1 << 30)
        self.max_turns: int = trainer.max_tool_calling_iterations
        words = copy.deepcopy(trainer.processing_class)  # so that TRL's own parsing does not change
        if getattr(words, "response_template", None) is None:
            words = add_response_schema(words)
        if not is_chat_template_prefix_preserving(words):
            words.chat_template = get_training_chat_template(words)
        self._words = words

    def opening(self, prompt: Any, environment: RolloutEnvironment, text: str) -> list[int]:
        """Return a prompt's tokens, with `text` at its end and the environment's tools in the chat template."""
        if isinstance(prompt, str):
            raise ConfigurationError(
                "SandboxRollouts needs prompts that are messages, such as "
                '[{"role": "user", "content": "..."}], not text'
            )
        *before, last = prompt
        if text and not isinstance(content := last["content"], str):  # parts, such as images
            last = {**last, "content": [*content, {"type": "text", "text": text}]}
        elif text:
            last = {**last, "content": last["content"] + text}
        return self._render([*before, last], tools_of(environment))

    def turn(self, rollouts: list[_Rollout]) -> bool:
        """Generate the next turn of each rollout; return whether there are log probabilities."""
        # This private method is the only way to generate with the engine that TRL is configured to
        # use. TRL's own examples of rollout_func use a private engine, too.
        begun = time.monotonic()
        replies, logprobs = self._trainer._generate_single_turn(
            [each.prompt_ids + each.ids for each in rollouts], None, {}, num_generations=1
        )
        took = time.monotonic() - begun
        for number, rollout in enumerate(rollouts):
            room = max(self._limit - len(rollout.ids), 0)
            before = rollout.prompt_ids + rollout.ids
            ids = list(replies[number])[:room]
            rollout.add(ids, 1, None if logprobs is None else list(logprobs[number])[:room])
            self._note(rollout, "assistant", ids)
            trace = rollout.environment._trace
            trace.seconds["sampling"] = trace.seconds.get("sampling", 0.0) + took
            trace.truncated = not ids or ids[-1] != self._words.eos_token_id
            tools = tools_of(rollout.environment)
            message = parse_response(self._words, ids, prefix=before, tools=tools) if ids else {}
            rollout.calls = message.get("tool_calls") or []
        return logprobs is not None

    def add_results(self, rollout: _Rollout, answers: list[Message]) -> bool:
        """Append the tools' results; return False, without appending, if they exceed a length limit.

        Raises ConfigurationError for a chat template that changes a turn when others follow it.
        """
        called: list[Message] = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": "", "tool_calls": rollout.calls},
        ]
        before = self._render(called, None, more=False)
        after = self._render([*called, *answers], None)
        # Templates add a line break after the token that ends a turn; the model does not generate it.
        ends = [at + 1 for at, token in enumerate(before) if token == self._words.eos_token_id]
        end = ends[-1] if ends else len(before)
        if after[:end] != before[:end]:
            raise ConfigurationError("the chat template changes a turn when others follow it")
        suffix = after[end:]
        length = len(rollout.ids) + len(suffix)
        if length > self._limit or len(rollout.prompt_ids) + length >= self._context:
            return False
        rollout.add(suffix, 0, None)
        self._note(rollout, "tool", suffix)
        return True

    def _note(self, rollout: _Rollout, role: str, ids: Sequence[int]) -> None:
        trace = rollout.environment._trace
        trace.turns.append(Turn(role, self._words.decode(list(ids)), len(ids)))
        trace.prompt_tokens, trace.policy_tokens = len(rollout.prompt_ids), sum(rollout.mask)
        trace.tool_tokens = len(rollout.mask) - sum(rollout.mask)

    def _render(self, messages: Any, tools: Any, more: bool = True) -> list[int]:
        ids: list[int] = self._words.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=more,
            tokenize=True,
            return_dict=False,
            **self._trainer.chat_template_kwargs,
        )
        return ids
