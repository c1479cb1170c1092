"""Creates and pretrains a tiny model, from which a training run starts."""

from collections.abc import Callable

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

_BATCH = 32


def fit(
    words: PreTrainedTokenizerFast,
    example: Callable[[], tuple[list[int], list[bool]]],
    steps: int = 200,
) -> Qwen3ForCausalLM:
    """Return a new model, trained for `steps` on examples.

    `example()` returns token ids, and for each whether the model is trained to generate it.
    """
    torch.set_num_threads(1)  # for such a small model two threads are not faster
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0, fused=True)
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
