"""A taskset, a harness and the env that plays them in sandboxes, as a package of verifiers has them."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import verifiers.v1 as vf

from sandboxkit.integrations.verifiers import SandboxkitEnv

__all__ = ["BoxHarness", "BoxTaskset", "SandboxkitEnv"]

AGENT = tomllib.loads((Path(__file__).parents[1] / "programs.toml").read_text())["agent"]


class BoxTask(vf.Task):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("data/number", b"42")

    @vf.reward
    async def solved(self, runtime: vf.Runtime) -> float:
        ran = await runtime.run(["python3", "answer.py"], {})
        return float((ran.exit_code, ran.stdout) == (0, "42\n"))


class BoxTaskset(vf.Taskset):
    def load(self) -> Iterable[vf.Task]:
        yield BoxTask(vf.TaskData(prompt="print the number in data/number", network_allow=[]))


class BoxHarness(vf.Harness):
    """An agent of one turn: what the model says is the program."""

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        env = {"ENDPOINT": endpoint, "SECRET": secret}
        return await runtime.run(["python3", "-c", AGENT, str(data.prompt)], env)
