"""Random starts, deaths, failures and closes of two sessions with pools, under one cap of the machine."""

import os
import tempfile
import time
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandboxkit import (
    Operation,
    ProcessResult,
    Sandbox,
    SandboxError,
    Session,
    _loop,
    _machine_semaphore,
    wait,
)
from sandboxkit.errors import CapacityError, ProviderUnavailableError, SandboxNotCleanError
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.pool.providers import Resetting

SOON = 60.0
"""Seconds within which all room is back once every fault has gone."""
CLOSED = 60.0
APART = {"APART": "1"}
"""The environment of the sandboxes that count towards no cap."""
FAULTS = ("create", "full", "delete", "reset", "ready")


class Machine:
    """The sandboxes of all sessions, and the faults of their backend."""

    def __init__(self) -> None:
        self.alive: dict[str, bool] = {}
        """Whether each sandbox counts towards the caps."""
        self.most = 0
        self.faults: set[str] = set()


class OfMachine(Provider):
    """Fails as its machine says, beside the class that it is mixed with."""

    on_this_machine: ClassVar[bool] = True

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.mine: set[str] = set()
        self.used: set[str] = set()

    async def create(self, spec: SandboxSpec) -> str:
        if "create" in self.machine.faults:
            raise ProviderUnavailableError("the connection was reset")
        if "full" in self.machine.faults:
            raise CapacityError("no room for now")
        sandbox_id = await super().create(spec)  # type: ignore[safe-super]  # of the class beside it
        self.mine.add(sandbox_id)
        self.machine.alive[sandbox_id] = spec.env != APART
        self.machine.most = max(self.machine.most, sum(self.machine.alive.values()))
        return sandbox_id

    async def delete(self, sandbox_id: str) -> None:
        if "delete" in self.machine.faults:
            raise ProviderUnavailableError("the connection was reset")
        await super().delete(sandbox_id)  # type: ignore[safe-super]  # of the class beside it
        self.machine.alive.pop(sandbox_id, None)

    async def reset(self, sandbox_id: str) -> None:
        if "reset" in self.machine.faults and sandbox_id in self.used:
            raise SandboxNotCleanError("/workspace", sandbox_id=sandbox_id)
        self.used.add(sandbox_id)  # the first call notes what is there
        await super().reset(sandbox_id)

    async def ready(self, sandbox_id: str) -> bool:
        if "ready" in self.machine.faults:
            raise ProviderUnavailableError("the connection was reset")
        return await super().ready(sandbox_id)


class Folders(OfMachine, Resetting):
    """Folders of this machine."""


class Real(OfMachine, LocalProvider):
    """Real sandboxes."""


class Pools(RuleBasedStateMachine):
    """Two sessions; each sandbox has a file with its own name and one of three environments."""

    kind: type[OfMachine] = Folders

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.boxes: dict[str, Sandbox] = {}
        self.pending: list[Operation[ProcessResult]] = []
        self.number = 0
        self.unhandled: list[str] = []
        _loop.get().set_exception_handler(lambda _, found: self.unhandled.append(str(found)))

    @initialize(
        own=st.integers(1, 3),
        shared=st.integers(1, 4) | st.none(),
        pools=st.tuples(*[st.sampled_from([None, 1, (1, 1), (0, 2), 3])] * 2),
        reset=st.booleans(),
        lifetime=st.sampled_from([None, 1.0]),
    )
    def begin(
        self,
        own: int,
        shared: int | None,
        pools: tuple[int | tuple[int, int] | None, ...],
        reset: bool,
        lifetime: float | None,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        os.environ["SANDBOXKIT_STATE_DIR"] = os.path.join(self.folder.name, "state")
        self.machine = Machine()
        self.own, self.shared, self.pools = own, shared, pools
        self.options: SpecOptions = {"lifetime": 600, "profile": "strict"}
        self.short = lifetime
        self.reuse = reset
        self.sessions = [self.made(number) for number in range(2)]

    def made(self, number: int) -> Session:
        """Return a session with a provider of its own; its pool is not larger than its cap."""
        pool = self.pools[number]
        if pool is not None:
            least, most = pool if isinstance(pool, tuple) else (0, pool)
            pool = (min(least, self.own), min(most, self.own))
        session = Session(
            self.kind(self.machine),
            max_concurrency=self.own,
            max_live=self.shared,
            pool=pool,
            **self.options,
        )
        return session.__enter__()

    def sandbox(self, which: int, env: int, *, counted: bool = True) -> tuple[str, Sandbox]:
        session = self.sessions[which]
        self.number += 1
        name = f"box-{self.number}"
        options: SpecOptions = {"files": {"/workspace/name": name.encode()}}
        options["env"] = {"A": str(env)} if env else {}
        if not counted:
            options["env"] = APART
        if self.reuse and session.pool:
            options["reuse"] = "reset"
        if self.short is not None and env == 2:
            options["lifetime"] = self.short
        box = session.sandbox(counted=counted, **options)
        return name, box

    which, env = st.integers(0, 1), st.integers(0, 2)

    @rule(which=which, env=env, counted=st.sampled_from([True, True, True, False]))
    def start(self, which: int, env: int, counted: bool) -> None:
        name, self.boxes[name] = self.sandbox(which, env, counted=counted)
        self.pending.append(self.boxes[name].exec(["cat", "/workspace/name"]))

    @rule(which=which, env=env, count=st.integers(1, 6))
    def run(self, which: int, env: int, count: int) -> None:
        for _ in range(count):
            _, box = self.sandbox(which, env)
            process = box.exec(["cat", "/workspace/name"])
            process._on_end(box._life.stop)
            self.pending.append(process)

    @rule(which=which, env=env, moment=st.floats(0, 0.03))
    def start_and_give_up(self, which: int, env: int, moment: float) -> None:
        name, self.boxes[name] = self.sandbox(which, env)
        starting = self.boxes[name].start()
        time.sleep(moment)
        starting.cancel()

    @rule(which=which, env=env)
    def start_with_a_limit(self, which: int, env: int) -> None:
        options: SpecOptions = {"env": {"A": str(env)}, "start_timeout": 0.05}
        self.pending.append(self.sessions[which].run(["true"], **options))

    @rule(which=which, moment=st.floats(0, 0.03))
    def adopt_and_give_up(self, which: int, moment: float) -> None:
        other = next((box for box in self.boxes.values() if box.id is not None), None)
        if other is not None and other.spec.reuse == "never":
            adopting = self.sessions[which].adopt(str(other.id))
            time.sleep(moment)
            adopting.cancel()

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def read_its_own_name(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.boxes)))
        try:
            reading = self.boxes[name].exec(["cat", "/workspace/name"])
        except SandboxError:
            return  # its session was closed
        try:
            assert reading.result(0.3).stdout == name
        except (SandboxError, TimeoutError):
            reading.cancel()

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.boxes.pop(data.draw(st.sampled_from(sorted(self.boxes)))).stop()

    @rule(which=st.integers(0, 9))
    def vanish(self, which: int) -> None:
        """Any sandbox dies: one that a caller has, an idle one, or one that is being reset."""
        alive = sorted(self.machine.alive)
        if not alive or "delete" in self.machine.faults:
            return
        sandbox_id = alive[which % len(alive)]
        for session in self.sessions:
            provider = session._provider
            assert isinstance(provider, OfMachine)
            if sandbox_id in provider.mine:
                Operation(provider.delete(sandbox_id)).result(SOON)

    @rule(fault=st.sampled_from(FAULTS))
    def fail_or_mend(self, fault: str) -> None:
        self.machine.faults ^= {fault}

    @rule(which=which)
    def warm(self, which: int) -> None:
        if self.sessions[which].pool:
            try:
                self.sessions[which].warm().result(0.1)
            except (SandboxError, TimeoutError):
                pass

    @rule(which=which)
    def close_and_go_on(self, which: int) -> None:
        self.machine.faults.discard("delete")
        self.sessions[which].close().result(CLOSED)
        self.sessions[which] = self.made(which)

    def teardown(self) -> None:
        if not self.sessions:
            return
        self.machine.faults.clear()
        try:
            for box in self.boxes.values():
                box.stop()
            ended = time.monotonic() + CLOSED
            for each in self.pending:
                try:
                    each.result(max(0.1, ended - time.monotonic()))
                except (SandboxError, TimeoutError):
                    assert each.done(), self.explained()
            self.full_throughput()
        finally:
            for session in self.sessions:
                session.close().result(CLOSED)
            _loop.get().set_exception_handler(None)
            _machine_semaphore._forget()
            del os.environ["SANDBOXKIT_STATE_DIR"]
            self.folder.cleanup()
        assert not self.unhandled
        assert not self.machine.alive
        assert self.machine.most <= min(self.shared or 99, 2 * self.own)
        for session in self.sessions:
            assert not session._context.lives
            assert not session._pool._taken
            assert session._limiter._used == 0

    def explained(self) -> str:
        return "\n".join(each.explain() for each in self.sessions)

    def full_throughput(self) -> None:
        """Each session alone gets all the room at once, although the other one keeps a pool."""
        for session in self.sessions:
            boxes = [session.sandbox() for _ in range(min(self.own, self.shared or self.own))]
            done, late = wait([box.start() for box in boxes], num_returns=len(boxes), timeout=SOON)
            assert not late, self.explained()
            for start in done:
                start.result()
            for box in boxes:
                box.stop().result(SOON)


class RealPools(Pools):
    kind = Real


def limits(examples: int, steps: int) -> settings:
    # The moments of starts and ends decide, so a smaller example seldom fails again.
    phases = (Phase.reuse, Phase.generate)
    slow = [HealthCheck.too_slow]
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=phases,
        suppress_health_check=slow,
    )


TestPools = pytest.mark.timeout(600)(Pools.TestCase)
TestPools.settings = limits(int(os.environ.get("SANDBOXKIT_POOL_EXAMPLES", "12")), 20)
TestRealPools = pytest.mark.timeout(900)(RealPools.TestCase)
TestRealPools.settings = limits(8, 15)
