"""Where the vendor's daemon is of the commands' user, no command stops it as a debugger does."""

import pytest

from sandboxkit.types import Command, SandboxSpec
from tests.agent.conftest import Run
from tests.agent.of_a_user import IMAGE, USER, OfAUser
from tests.components import needs_mounts

pytestmark = [
    pytest.mark.anyio,
    needs_mounts("machines with users of their own"),
]

_ATTACH = """
import ctypes, os, signal, sys, time
call = ctypes.CDLL(None, use_errno=True).ptrace
while not (found := os.popen("find /proc -maxdepth 1 -user 1234 -exec grep -qsx sleep {}/comm \\; -printf %f").read()):
    pass  # it is another program just after its fork
daemon = int(found)
for request in (16, 0x4206):
    print(call(request, daemon, 0, 0), ctypes.get_errno())
child = os.fork()
if not child:
    call(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
print(os.WIFSTOPPED(os.waitpid(child, 0)[1]))
"""


async def test_a_command_attaches_to_nothing_and_traces_what_it_starts(anyio_backend: str) -> None:
    machines = OfAUser(IMAGE)
    try:
        sandbox_id = await machines.create(SandboxSpec(workdir="/srv/home/work"))
        await machines.program(sandbox_id, *USER, "sleep", "1000")
        run = Run()
        command = Command(("/usr/bin/python3", "-c", _ATTACH))
        run.exit = await machines.exec(sandbox_id, command, run.output)
        assert run.stdout == b"-1 1\n-1 1\nTrue\n", run.stderr
    finally:
        for sandbox_id in list(machines.processes):
            await machines.delete(sandbox_id)
