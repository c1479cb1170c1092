"""The public API over Docker."""

import subprocess
import sys

import pytest

from sandboxkit import Session
from sandboxkit.errors import CommandTimeoutError
from sandboxkit.providers.docker import DockerProvider


def test_many_one_shot_runs_leave_nothing(tag: str) -> None:
    with Session(DockerProvider(), tags={"test": tag}, max_concurrency=4) as session:
        processes = [session.run(["python", "-c", f"print({n} ** 2)"]) for n in range(12)]
        assert [process.result().stdout for process in processes] == [
            f"{n**2}\n" for n in range(12)
        ]


def test_a_timeout_kills_the_commands_whole_tree(tag: str) -> None:
    with Session(DockerProvider(), tags={"test": tag}) as session:
        sandbox = session.sandbox()
        script = "setsid sleep 1000 & (sleep 1001 &) ; echo started; sleep 1002"
        with pytest.raises(CommandTimeoutError) as caught:
            sandbox.exec(["sh", "-c", script], timeout=1).result()
        assert caught.value.result.stdout == "started\n"
        left = sandbox.exec(["pgrep", "-x", "sleep"]).result()
        assert left.stdout == ""


def test_a_hundred_megabytes_arrive_complete(tag: str) -> None:
    with Session(DockerProvider(), tags={"test": tag}) as session:
        code = "import sys\nfor _ in range(100): sys.stdout.buffer.write(bytes(1 << 20))"
        process = session.sandbox().exec(["python", "-c", code])
        assert sum(len(chunk) for chunk in process.stdout.bytes()) == 100 << 20
        assert process.result().returncode == 0


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
