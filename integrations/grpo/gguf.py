"""A model in a GGUF file made into a folder in Hugging Face's format, where it can be trained."""

import contextlib
import io
import struct
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._extras import needs

__all__ = ["dequantize"]

_LINE_END = "Ċ"
"""A line break as byte-level vocabularies spell it."""


def dequantize(file: Path, folder: Path, *, one_line: bool = False) -> None:
    """Write the model, in float32, and its tokenizer; with `one_line` completions end with their line.

    Raises ConfigurationError for a file that cannot be read, MissingExtraError.
    """
    with needs("gguf"):
        import gguf  # noqa: F401 - transformers reads the file with it
    # Progress bars, of which transformers' own setting turns off some.
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
    model.hf_quantizer = None  # what is saved is not quantized any more
    del model.config.quantization_config
    ends = {tokenizer.eos_token_id}
    if one_line:
        ends |= {i for token, i in tokenizer.get_vocab().items() if set(token) == {_LINE_END}}
    model.generation_config = GenerationConfig(eos_token_id=sorted(ends))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
