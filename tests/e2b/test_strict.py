"""`profile="strict"`: what it is where we are root in a machine, and what is said where we are not."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxkit import CapacityError, Sandbox, SandboxStartError, Session
from tests.emulators._server import Server

JOB = 'id -u; ls -A /workspace /tmp; echo "$1" >/workspace/job; touch "/tmp/$1"; sleep 300 & true'
SYSTEM = "/ /etc /usr/bin /usr/local/bin /usr/local/lib /code /home/user /root"


@pytest.fixture(scope="module")
def strict(rooted: Server) -> Iterator[Sandbox]:
    with Session("e2b") as session:
        yield session.sandbox(profile="strict").start().result(60)


def test_commands_run_as_a_user_without_files(strict: Sandbox) -> None:
    script = "id -u; grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status | cut -f2"
    output = strict.exec(["sh", "-c", script]).result(30).stdout.split()
    assert output == ["65534", "0" * 16, "0" * 16, "0" * 16, "1"]
    strict.write_file("/workspace/x", b"1").result(30)
    assert strict.exec(["sh", "-c", "cat /workspace/x && touch /tmp/y"]).result(30).stdout == "1"


def test_nothing_of_the_system_can_be_written(strict: Sandbox) -> None:
    script = f'for folder in {SYSTEM}; do touch "$folder/x" 2>&- && echo "$folder"; done; true'
    assert strict.exec(["sh", "-c", script]).result(30).stdout == ""
    find = r"find / -xdev \( -type f -o -type d ! -perm -1000 \) -writable -print 2>/dev/null"
    found = strict.exec(["sh", "-c", find]).result(60).stdout.splitlines()
    assert set(found) <= {"/workspace", "/workspace/x", "/tmp/y"}


def test_the_agent_cannot_be_replaced_or_ended(strict: Sandbox) -> None:
    script = Path(__file__).with_name("replaces_the_agent.txt").read_text()
    assert strict.exec(["sh", "-c", script]).result(30).stdout == ""
    assert strict.exec(["true"]).result(30).returncode == 0


def test_without_root_there_is_no_such_profile(server: Server, session: Session) -> None:
    with pytest.raises(SandboxStartError, match="needs root") as raised:
        session.sandbox(profile="strict").start().result(30)
    assert not isinstance(raised.value, CapacityError)
    assert server.alive == []


def test_fifty_jobs_with_ten_sandboxes_make_ten(rooted: Server) -> None:
    rooted.clear()
    with Session("e2b", pool=10, max_concurrency=10, profile="strict", reuse="reset") as session:

        def job(number: int) -> str:
            with session.sandbox() as sandbox:
                return sandbox.exec(["sh", "-c", JOB, "sh", str(number)]).result(120).stdout

        with ThreadPoolExecutor(10) as threads:
            output = [text.split("\n", 1) for text in threads.map(job, range(50))]
        assert Counter(rest for _, rest in output) == {"/tmp:\n\n/workspace:\n": 50}
        assert len({uid for uid, _ in output}) == 50
        assert rooted.requests.count("POST /v2/sandboxes") == 10
