"""The public API over Docker."""

import subprocess
import sys


def test_a_program_that_forgets_to_close_leaves_nothing(tag: str) -> None:
    program = (
        "import sys\n"
        "from sandboxkit import Session\n"
        "from sandboxkit.providers.docker import DockerProvider\n"
        "session = Session(DockerProvider(), tags={'test': sys.argv[1]})\n"
        "print(session.sandbox().exec(['echo', 'hello']).result().stdout, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tag], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
