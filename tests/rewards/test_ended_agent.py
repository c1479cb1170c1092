"""Where the agent is of the commands' own user, a submission can end it: that excuses nothing."""

import asyncio

import pytest

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict
from tests.agent.machines import Machines
from tests.components import needs_mounts
from tests.rewards.corpus import DATA, read

pytestmark = [pytest.mark.timeout(280), needs_mounts("machines with folders of their own")]

OWN_FOLDERS = "mount -t tmpfs none /usr/local/bin && mount -t tmpfs none /dev/shm"
GIVEN = read(DATA / "ended_agent.toml")
HOSTILE = GIVEN["hostile"]
"""What a function does to the agents, which `agents()` names."""
CASES = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}]}


def test_a_submission_that_ends_the_agent_is_scored() -> None:
    async def graded(session: Session, body: str) -> Verdict:
        imports = "import contextlib, glob, os, resource, time"
        code = f"{imports}\n{GIVEN['agents']}\ndef f(x):\n    {body}\n    return x + 2\n"
        python = "/usr/bin/python3"
        limits = Limits(timeout=4.0, wall=10.0, deadline=240.0, retries=1, python=python)
        return await HostCompare(limits).grade(session, code, CASES)

    async def run() -> dict[str, Verdict]:
        async with Session(Machines(OWN_FOLDERS), max_concurrency=3) as session:
            tasks = {
                name: asyncio.create_task(graded(session, body))
                for name, body in {**HOSTILE, "honest": "return x + 1"}.items()
            }
            return {name: await task for name, task in tasks.items()}

    verdicts = asyncio.run(run())
    message = {name: f"{v.outcome} {v.attributable_to} {v.detail}" for name, v in verdicts.items()}
    assert verdicts.pop("honest").outcome is Outcome.PASSED, message
    blamed = [v for v in verdicts.values() if v.attributable_to == "policy" and v.reward == 0.0]
    assert len(blamed) == len(HOSTILE), message
