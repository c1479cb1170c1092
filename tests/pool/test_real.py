"""The pool with real sandboxes, a real reset and a real interpreter."""

import os

import pytest

from sandboxkit import Interpreter, SandboxTerminatedError, Session
from tests.docker_here import require_docker
from tests.pool.providers import until
from tests.reset.jobs import ENDS_CONNECTIONS

DEADLINE = 60.0
LEAVES = """
import json, os, subprocess, sys
print(json.dumps([sorted(os.listdir(".")), os.path.exists("/tmp/left"), sys.argv[1:]]))
open("left", "w").close()
open("/tmp/left", "w").close()
subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_successive_jobs_do_not_see_each_other(provider: str) -> None:
    if provider == "docker":
        require_docker()
    tag = f"jobs:{os.getpid()}"
    with Session(
        provider,
        pool=2,
        max_concurrency=2,
        profile="strict",
        reuse="reset",
        interpreter=Interpreter(preload=("json",)),
        tags=tag,
    ) as session:
        session.warm().result(DEADLINE)
        first = {info.id for info in session.list(tag).result(DEADLINE)}
        assert len(first) == 2
        jobs = [
            session.run_python(LEAVES, args=[str(each)], files={"/workspace/mine": b""})
            for each in range(20)
        ]
        for number, job in enumerate(jobs):
            assert job.result(DEADLINE).stdout == f'[["mine"], false, ["{number}"]]\n'
        endless = session.run_python("import time; print(1, flush=True); time.sleep(1000)")
        assert next(iter(endless.stdout)) == "1\n"
        endless.cancel()
        stopped = session.sandbox().start().result(DEADLINE)
        running = stopped.exec(["sleep", "1000"])
        stopped.exec(["true"]).result(DEADLINE)
        stopped.stop().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            running.result(DEADLINE)
        assert session.run_python("print(2)").result(DEADLINE).stdout == "2\n"
        for _ in range(3):
            ended = session.run(["python3", "-c", ENDS_CONNECTIONS]).result(DEADLINE)
            assert ended.returncode == 0, ended.stderr
        stats = until(session, lambda stats: stats.ready == 2)
        assert stats.thrown_away == {}, stats.recent
        assert (stats.made, stats.misses) == (2, 0)
        assert {info.id for info in session.list(tag).result(DEADLINE)} == first
