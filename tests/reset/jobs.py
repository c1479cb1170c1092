"""One job after another in a sandbox that is reset between them."""

import json
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sandboxkit import Operation, _tags
from sandboxkit._life import _owners
from sandboxkit.errors import CommandStartError, SandboxNotCleanError, SandboxTerminatedError
from sandboxkit.provider import Box, Provider, StreamName
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Interpreter, Reuse, SandboxSpec
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE
from tests.reset.attacks import ATTACKS, attacker, victim

PROGRAMS = beside(__file__)
ENDS_CONNECTIONS: str = PROGRAMS["ends_connections"]
"""A job that makes and ends TCP connections of its loopback."""

DEADLINE = 60.0
_PATIENCE = 45.0
_OF_ALL = "/queues:"
"""What is counted for all sandboxes of this machine together."""
_WHO = "import os; print([os.getuid(), os.getgid(), *os.getgroups()])"
Mode = Literal["exec", "python"]
"""How jobs are run: by a command of their own, or in forks of one interpreter."""
Outcome = Literal["clean", "given up"]
Seen = dict[str, Any]  # Any: what JSON is
T = TypeVar("T")


def wait(work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's own
    return Operation(work).result(DEADLINE)


@dataclass
class Job:
    """What one job has said, and how it ended; None if it did not."""

    status: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""

    async def output(self, stream: StreamName, data: bytes) -> None:
        if stream == "stdout":
            self.stdout += data
        else:
            self.stderr += data

    def seen(self) -> Seen:
        """What a victim reports; what it said instead, where it came to no report."""
        try:
            found = json.loads(self.stdout)
        except ValueError:
            found = {"said": self.stdout.decode(errors="replace")}
        return {**found, "status": self.status, "stderr": self.stderr.decode(errors="replace")}


def _flat(value: object, path: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {path: repr(value)}
    found: dict[str, str] = {}
    for key, each in value.items():
        found |= _flat(each, f"{path}/{key}")
    return found


def differences(fresh: Seen, now: Seen) -> list[str]:
    before, after = _flat(fresh), _flat(now)
    return [
        f"{key}: {before.get(key, 'absent')[:300]} is now {after.get(key, 'absent')[:300]}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


@dataclass
class Target:
    """A provider, a way to run jobs, and one sandbox for as long as resets keep it clean."""

    name: str
    mode: Mode
    workdir: str | None = None
    reuse: Reuse = "reset"
    provider: Provider = field(init=False)
    made: int = 0
    why_given_up: str = ""
    _sandbox: Box | None = None
    _fresh: dict[str, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.provider = LocalProvider() if self.name == "local" else DockerProvider()

    def _spec(self) -> SandboxSpec:
        image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
        return SandboxSpec(
            image=None if self.name == "local" else image,
            workdir=self.workdir,
            tags={_tags.OWNER: _owners.owner()},
            profile="strict",
            memory_mb=256,
            disk_mb=64,
            pids=64,
            reuse=self.reuse,
            interpreter=Interpreter() if self.mode == "python" else None,
        )

    def fresh(self) -> Box:
        sandbox = wait(self.provider.create(self._spec()))
        self.made += 1
        try:
            if self.mode == "python":
                wait(sandbox.start_interpreter(Interpreter()))
            wait(sandbox.reset())
        except BaseException:
            wait(sandbox.delete())
            raise
        return sandbox

    def sandbox(self) -> Box:
        """The one that is used until a reset gives it up."""
        if self._sandbox is None:
            self._sandbox = self.fresh()
        return self._sandbox

    def give_up(self) -> None:
        if self._sandbox is not None:
            wait(self._sandbox.delete())
            self._sandbox = None

    def close(self) -> None:
        self.give_up()
        wait(self.provider.aclose())

    def run(self, sandbox: Box, code: str, *, patience: float = _PATIENCE) -> Job:
        """Run a job; one that does not end is cancelled."""
        job = Job()
        if self.mode == "python":
            work = sandbox.run_python(code, Command(("-c",)), job.output)
        else:
            work = sandbox.exec(Command(("python3", "-c", code)), job.output)
        operation = Operation(work)
        try:
            job.status = operation.result(patience).status
        except TimeoutError:
            operation.cancel()
        except CommandStartError as error:
            job.stderr = str(error).encode()
        return job

    def as_fresh(self, name: str) -> Seen:
        """What the victim of an attack reports in a sandbox in which nothing has run."""
        feel = ATTACKS[name].feel
        if feel not in self._fresh:
            sandbox = self.fresh()
            try:
                self._fresh[feel] = self.run(sandbox, victim(name)).seen()
            finally:
                wait(sandbox.delete())
        return self._fresh[feel]

    def _attack(self, name: str) -> bool:
        """Run job one; False where it took the sandbox with it."""
        attack = ATTACKS[name]
        # As its files are written: the agent then has a thread that acts as the job.
        wait(self.sandbox().stat(self.workdir or "/workspace"))
        patience = 3.0 if attack.dies else _PATIENCE
        try:
            job = self.run(self.sandbox(), attacker(name), patience=patience)
        except SandboxTerminatedError:
            self.give_up()
            return False
        if job.status != 0 and not attack.dies:
            self.give_up()
            output = job.stderr.decode(errors="replace")
            raise AssertionError(f"the attack itself failed ({job.status}): {output}")
        return True

    def may_give_up(self, name: str) -> bool:
        """Whether an attack may cost the sandbox; the interpreter's death always may."""
        attack = ATTACKS[name]
        return self.name in attack.costs or (attack.dies and self.mode == "python")

    def reset(self) -> Outcome:
        """Reset the sandbox, and delete it where that raises as it may."""
        try:
            wait(self.sandbox().reset())
        except (SandboxNotCleanError, SandboxTerminatedError) as error:
            self.why_given_up = str(error)
            self.give_up()
            return "given up"
        return "clean"

    def felt_without_a_reset(self, name: str) -> list[str]:
        """How the next job knows of an attack where nothing is done about it."""
        fresh = self.as_fresh(name)
        if not self._attack(name):
            return ["the sandbox has ended"]
        found = differences(fresh, self.run(self.sandbox(), victim(name)).seen())
        self.reset()
        return found

    def felt_after_a_reset(self, name: str) -> tuple[Outcome, list[str]]:
        """What becomes of the sandbox, and how the next job knows of the attack."""
        fresh = self.as_fresh(name)
        if not self._attack(name) or self.reset() == "given up":
            return "given up", []
        felt = differences(fresh, self.run(self.sandbox(), victim(name)).seen())
        for _ in range(5):
            if not felt or not all(each.startswith(_OF_ALL) for each in felt):
                break
            time.sleep(0.5)  # what a job has left would still be there
            felt = differences(fresh, self.run(self.sandbox(), victim(name)).seen())
        if felt:
            self.give_up()  # else the attacks that follow would seem to be felt as well
        return "clean", felt

    def user(self) -> tuple[int, ...]:
        """The numbers of a job's user and groups; the sandbox is reset after it."""
        job = self.run(self.sandbox(), _WHO)
        assert job.status == 0, job.stderr
        assert self.reset() == "clean"
        return tuple(json.loads(job.stdout))
