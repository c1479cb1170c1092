"""A command that the agent runs once for each of several inputs, with a reset between two runs."""

from collections.abc import Iterator

from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.frames import Fields
from sandboxkit.providers._agent.requests import execute, exit_of
from sandboxkit.types import Command, CommandInput, CommandSeries, ProcessResult, StreamName

__all__ = ["execute_each"]

_RUNS_SERIES = 20
"""The number that an agent lists among its calls if an EXEC may have a series."""
_EXIT_BYTES = 33


async def execute_each(
    client: AgentClient, command: Command, series: CommandSeries
) -> list[ProcessResult]:
    """Run a command as `Provider.exec_each` specifies. Raises CallError with ENOSYS for an old agent."""
    client.require(_RUNS_SERIES)
    records = bytearray()

    async def collect(_: StreamName, data: bytes) -> None:
        records.extend(data)

    await execute(client, command, collect, series=series)
    return list(_results(command, series.inputs, Fields(bytes(records))))


def _results(
    command: Command, inputs: tuple[CommandInput, ...], fields: Fields
) -> Iterator[ProcessResult]:
    for given in inputs:
        if not fields:
            return
        ended = exit_of(fields.fixed(_EXIT_BYTES))
        duration = int.from_bytes(fields.fixed(8), "big") / 1e9
        stdout, stderr = fields.data(), fields.data()
        argv = (*command.argv, *given.args)
        yield ProcessResult(
            argv, ended.status, stdout, stderr, False, duration, ended.ending, ended.usage
        )
