"""What sandboxkit costs, beside its peers and the floor, in one run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "grpo"))  # for its toys
