"""The trainer's tests. Its toys are an example's, which is no package: this is the way there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "grpo"))
