"""A process that has more than 1,024 files open makes sandboxes like any other."""

import os
import resource
import subprocess
import sys

CODE = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
held = [os.dup(0) for _ in range(1100)]
from sandboxkit import Session
with Session("local") as session:
    print(session.run(["echo", "made"]).result().stdout, end="")
"""


def test_a_process_with_many_open_files_makes_sandboxes() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 2000, "this machine allows too few"
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=dict(os.environ), capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("made\n", 0), done.stderr
