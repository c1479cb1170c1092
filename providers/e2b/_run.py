"""Runs a program in a sandbox; the first one also probes whether streamed input reaches programs."""

import anyio

from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._stream import E2BProgram, is_refusal

_PROBE = ("/bin/sh", "-c", 'read -r line && echo && exec "$@"', "sh")
"""A shell command that outputs one byte when its first input line arrives, then execs the program."""
_PROBE_SECONDS = 4.0


async def run(machine: Machine, argv: tuple[str, ...]) -> E2BProgram:
    """Start a program as root. Raises SandboxNotFoundError, ProviderUnavailableError and others.

    A proxy may refuse calls with streamed input, or buffer such input until it is complete. The first
    program probes for that; the result applies to later programs in all sandboxes.
    """
    if machine.streams is None:
        program = await _begun(machine, (*_PROBE, *argv), streamed=True)
        try:
            echoes = await _echoes(program, min(_PROBE_SECONDS, machine.response_seconds))
        except BaseException:
            await program.aclose()
            raise
        if echoes:
            machine.streams = True
            return program
        await program.aclose()
        if program.refused is None or is_refusal(program.refused):
            machine.streams = False
    return await _begun(machine, argv, streamed=machine.streams is True)


async def _begun(machine: Machine, argv: tuple[str, ...], *, streamed: bool) -> E2BProgram:
    program = E2BProgram(machine, machine.start(argv), streamed=streamed)
    try:
        await program.begin()
    except BaseException:
        await program.aclose()
        raise
    return program


async def _echoes(program: E2BProgram, seconds: float) -> bool:
    """Return whether input reaches the probe within `seconds`; raise the error of a probe that ended.

    A refused input is not an error.
    """
    with anyio.move_on_after(seconds):
        try:
            await program.send(b"\n")
            return await program.receive(1) == b"\n"
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            if program.refused is None:
                raise program.failure() from None
    return False
