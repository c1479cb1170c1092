"""Benchmarks of sandboxkit, compared with other libraries and with bare processes."""

import sys
from pathlib import Path

sys.path.append(
    str(Path(__file__).resolve().parents[1] / "examples" / "grpo")
)  # for the package `toys`
