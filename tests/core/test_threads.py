"""A machine without room for another thread: an error that says so, and no end of the session."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource
from sandboxkit import Session

with Session(provider="local") as session, session.sandbox() as sandbox:
    sandbox.write_file("/workspace/one", b"1")
    # The stack of a thread is address space: with none left, the system refuses a thread.
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
    loads = [sandbox.download("/workspace", f"{TARGET}/{i}") for i in range(8)]
    errors = [error for load in loads if (error := load.exception(30))]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for error in errors:
        print(type(error).__name__, error)
    print(sandbox.read_file("/workspace/one").result(30))
"""


def test_a_failed_thread_start_names_its_cause(tmp_path: Path) -> None:
    program = PROGRAM.replace("TARGET", repr(str(tmp_path / "to")))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *errors, after = done.stdout.splitlines()
    assert errors
    for output in errors:
        assert output.startswith(
            "ProviderUnavailableError this machine, not the sandbox, cannot start"
        )
    assert after == "b'1'"
