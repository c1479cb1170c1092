"""Pools and processes: others on this machine that want room, forks, and sudden ends."""

import os
import subprocess
import sys

import pytest

from sandboxkit import ConfigurationError, Session
from tests.data_here import beside
from tests.pool.providers import DEADLINE, Counting, Here, own_places, settled, until

__all__ = ["own_places"]


PROGRAMS = beside(__file__, "processes.toml")


@pytest.mark.usefixtures("own_places")
def test_idle_sandboxes_give_their_room_to_other_processes_and_sessions() -> None:
    provider = Here()
    with Session(provider, pool=2, max_live=2) as session:
        until(session, lambda stats: stats.ready == 2)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS["hungry"]], capture_output=True, text=True, timeout=120
        )
        assert (done.stdout, done.stderr) == ("1\n2\n", "")
        until(session, lambda stats: stats.ready == 2)
        with Session(Here(), max_live=2) as other:
            assert other.run(["true"]).result(DEADLINE).returncode == 0
        assert session.pool_stats().thrown_away.keys() == {"room for another session"}
        settled(session, provider)


def test_a_forked_child_has_no_pool() -> None:
    provider = Counting()
    with Session(provider, pool=1) as session:
        until(session, lambda stats: stats.ready == 1)
        if (pid := os.fork()) == 0:
            try:
                session.close().result(DEADLINE)
                session.run(["true"])
            except ConfigurationError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert session.run(["true"]).result(DEADLINE).returncode == 0
        assert session.pool_stats().hits == 1
