"""Converts a GGUF model to Hugging Face's format, in which it can be trained."""

import contextlib
import io
import struct
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from sandboxkit.errors import ConfigurationError

__all__ = ["dequantize"]

_LINE_END = "Ċ"
"""The token for a line break in byte-level vocabularies."""


def dequantize(file: Path, folder: Path, *, one_line: bool = False) -> None:
    """Write the model in float32 and its tokenizer to `folder`; `one_line`: a line break ends a completion.

    Raises ConfigurationError if the file cannot be read, or without the gguf package.
    """
    try:
        import gguf  # noqa: F401 - transformers reads the file with it
    except ImportError as error:
        raise ConfigurationError("a GGUF model needs gguf: pip install gguf") from error
    # Hide progress bars: transformers' setting turns off only some of them.
    with contextlib.redirect_stderr(io.StringIO()):
        _dequantize(file, folder, one_line)


def _dequantize(file: Path, folder: Path, one_line: bool) -> None:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigurationError(f"model {str(file)!r} cannot be read: {error}") from error
    model.hf_quantizer = None  # the saved model is not quantized
    del model.config.quantization_config
    ends = {tokenizer.eos_token_id}
    if one_line:
        ends |= {i for token, i in tokenizer.get_vocab().items() if set(token) == {_LINE_END}}
    model.generation_config = GenerationConfig(eos_token_id=sorted(ends))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
