"""What an agent made is graded in a sandbox that the agent never saw, after its own is gone."""

import asyncio

from sandboxkit import Sandbox, Session
from sandboxkit.integrations.rewards import Outcome, Verdict, grade_in_fresh

NAMES = ["Grace", "Ada", "Edsger", "Barbara"]
PATH = "/workspace/names.txt"
AGENTS = {  # what an agent would have run in its sandbox, to sort the file
    "sorts": "sort -o names.txt names.txt",
    "does nothing": "true",
    "replaces a tool": "printf '#!/bin/sh\\n' > sort; chmod +x sort; PATH=.:$PATH sort names.txt",
    "deletes the file": "rm names.txt",
}


async def judge(sandbox: Sandbox) -> Verdict:
    """The file is data in here; what is compared with it never was in a sandbox."""
    found = (await sandbox.read_file(PATH, max_bytes=1000)).decode(errors="replace").split()
    passed = found == sorted(NAMES)
    return Verdict(Outcome.PASSED if passed else Outcome.FAILED, float(passed))


async def main() -> None:
    """Grade what each agent left in the file; nothing else of its sandbox comes along."""
    files = {PATH: "\n".join(NAMES)}
    async with Session(tags="rl-training") as session:
        for name, command in AGENTS.items():
            agent = session.sandbox(files=files)
            await agent.exec(["bash", "-c", command], timeout=10)
            verdict = await grade_in_fresh(agent, [PATH], session.sandbox, judge, deadline=60)
            print(f"{name}: {verdict.outcome}, reward {verdict.reward} {verdict.detail}".rstrip())


asyncio.run(main())
