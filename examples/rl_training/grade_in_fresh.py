"""Grade an agent's files in a new sandbox, after the agent's own sandbox was stopped."""

import asyncio

from sandboxkit import Sandbox, Session
from sandboxkit.integrations.rewards import Outcome, Verdict, grade_in_fresh

NAMES = ["Grace", "Ada", "Edsger", "Barbara"]
PATH = "/workspace/names.txt"
AGENTS = {  # the command with which each agent sorts the file
    "sorts": "sort -o names.txt names.txt",
    "does nothing": "true",
    "replaces a tool": "printf '#!/bin/sh\\n' > sort; chmod +x sort; PATH=.:$PATH sort names.txt",
    "deletes the file": "rm names.txt",
}


async def judge(sandbox: Sandbox) -> Verdict:
    """Grade the sorted file. It is read as data, and the expected content is never in a sandbox."""
    found = (await sandbox.read_file(PATH, max_bytes=1000)).decode(errors="replace").split()
    passed = found == sorted(NAMES)
    return Verdict(Outcome.PASSED if passed else Outcome.FAILED, float(passed))


async def main() -> None:
    """Run each agent and grade its file; nothing else is copied from its sandbox."""
    files = {PATH: "\n".join(NAMES)}
    async with Session(tags="rl-training") as session:
        for name, command in AGENTS.items():
            agent = session.sandbox(files=files)
            await agent.exec(["bash", "-c", command], timeout=10)
            verdict = await grade_in_fresh(agent, [PATH], session.sandbox, judge, deadline=60)
            print(f"{name}: {verdict.outcome}, reward {verdict.reward} {verdict.detail}".rstrip())


asyncio.run(main())
