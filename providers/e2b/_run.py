"""Running a program in a sandbox, with an input that is known to reach it."""

import anyio

from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._stream import Program, is_refusal

__all__ = ["run"]

_PROBE = ("/bin/sh", "-c", 'read -r line && echo && exec "$@"', "sh")
"""Says by a byte of its own that the first line of its input has come, then becomes the program."""
_PROBE_SECONDS = 4.0


async def run(machine: Machine, argv: tuple[str, ...]) -> Program:
    """Start a program as root. Raises SandboxNotFoundError, ProviderUnavailableError and others.

    A proxy may refuse a call whose input is streamed, or keep that until all of it has come. The
    first program of a sandbox shows whether one does; what is found holds for those that follow.
    """
    if machine.streams is None:
        program = await _begun(machine, (*_PROBE, *argv), streamed=True)
        try:
            heard = await _is_heard(program, min(_PROBE_SECONDS, machine.answer))
        except BaseException:
            await program.aclose()
            raise
        if heard:
            machine.streams = True
            return program
        await program.aclose()
        if program.refused is None or is_refusal(program.refused):
            machine.streams = False
    return await _begun(machine, argv, streamed=machine.streams is True)


async def _begun(machine: Machine, argv: tuple[str, ...], *, streamed: bool) -> Program:
    program = Program(machine, machine.start(argv), streamed=streamed)
    try:
        await program.begin()
    except BaseException:
        await program.aclose()
        raise
    return program


async def _is_heard(program: Program, seconds: float) -> bool:
    """Whether its input reaches a probe. Raises what ended the probe for another reason."""
    with anyio.move_on_after(seconds):
        try:
            await program.send(b"\n")
            return await program.receive(1) == b"\n"
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            if program.refused is None:
                raise program.failure() from None
    return False
