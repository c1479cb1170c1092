"""How much the client grows while a command prints far more than it keeps."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.comparisons import Comparison

MEGABYTES = 300
ALLOWED = 50

# In a process of its own: the largest resident size of a process never shrinks.
CLIENT = """
import json, resource, sys
from sandboxkit import Session
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with Session(sys.argv[1]) as session, session.sandbox() as sandbox:
    sandbox.exec(["true"]).result()
    before = peak()
    argv = ["head", "-c", str(int(sys.argv[2]) << 20), "/dev/zero"]
    result = sandbox.exec(argv, check=True).result()
    assert result.truncated
    print(json.dumps(peak() - before))
"""


def output_memory(rounds: int) -> list[Comparison]:
    """Growth in MB on each provider; the ratio is to what the command printed."""
    del rounds  # a high-water mark needs no median
    found = []
    for provider in ("local", "docker"):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, provider, str(MEGABYTES)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
        growth = float(json.loads(done.stdout))
        found.append(
            Comparison(
                f"{provider}, client memory for {MEGABYTES} MB of output",
                growth,
                MEGABYTES,
                "printed",
                "MB",
                growth / MEGABYTES,
                "at most",
                round(ALLOWED / MEGABYTES, 3),
            )
        )
    return found
