"""Random lives of sandboxes under a cap: never above it, never stuck, nothing left, nobody else's."""

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandboxkit import Operation, ProcessResult, Sandbox, SandboxError, Session, _loop
from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.pool.providers import Resetting

SOON = 60.0
"""Seconds after which something is stuck, on a busy machine too."""


class _Faults(Provider):
    """Counts what lives, and fails deletions or resets while it is told to."""

    broken = False
    most = 0

    def __init__(self) -> None:
        super().__init__()
        self.alive: set[str] = set()

    async def create(self, spec: SandboxSpec) -> str:
        sandbox_id = await super().create(spec)  # type: ignore[safe-super] # that of the class beside it
        self.alive.add(sandbox_id)
        self.most = max(self.most, len(self.alive))
        return sandbox_id

    async def delete(self, sandbox_id: str) -> None:
        if self.broken:
            raise ProviderUnavailableError("the connection was reset")
        await super().delete(sandbox_id)  # type: ignore[safe-super] # that of the class beside it
        self.alive.discard(sandbox_id)


class FaultyFake(_Faults, Resetting):
    """Folders of this machine."""


class FaultyLocal(_Faults, LocalProvider):
    """Real sandboxes."""


class Lives(RuleBasedStateMachine):
    """Some sandboxes of one session; each has a file with its own name."""

    make: type[_Faults] = FaultyFake

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[str, Sandbox] = {}
        self.pending: list[Operation[ProcessResult]] = []
        self.number = 0
        self.unhandled: list[str] = []
        loop = _loop.get()
        loop.set_exception_handler(lambda _, found: self.unhandled.append(str(found)))

    @initialize(cap=st.integers(1, 3), pool=st.sampled_from([None, 1]), reset=st.booleans())
    def begin(self, cap: int, pool: int | None, reset: bool) -> None:
        self.provider, self.cap = self.make(), cap
        self.options: SpecOptions = (
            {"profile": "strict", "reuse": "reset"} if pool and reset else {}
        )
        self.session = Session(self.provider, max_concurrency=cap, pool=pool)

    def _named(self) -> tuple[str, Sandbox]:
        self.number += 1
        name = f"box-{self.number}"
        options: SpecOptions = {**self.options, "files": {"/workspace/name": name.encode()}}
        box = self.session.sandbox(**options)
        self.boxes[name] = box
        return name, box

    @rule()
    def start(self) -> None:
        _, box = self._named()
        self.pending.append(box.exec(["cat", "/workspace/name"]))

    @rule(moment=st.floats(0, 0.05))
    def start_and_give_up(self, moment: float) -> None:
        _, box = self._named()
        starting = box.start()
        time.sleep(moment)
        starting.cancel()

    @rule()
    def start_with_a_limit(self) -> None:
        options: SpecOptions = {**self.options, "start_timeout": 0.05}
        self.pending.append(self.session.run(["true"], **options))

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def read_its_own_name(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.boxes)))
        reading = self.boxes[name].exec(["cat", "/workspace/name"])
        try:
            assert reading.result(0.5).stdout == name
        except (SandboxError, TimeoutError):
            reading.cancel()

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.boxes)))
        self.boxes.pop(name).stop()

    @precondition(lambda self: self.boxes)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.boxes)))
        if (sandbox_id := self.boxes[name].id) is not None and not self.provider.broken:
            Operation(self.provider.delete(sandbox_id)).result(SOON)

    @rule()
    def fail_or_mend(self) -> None:
        self.provider.broken = not self.provider.broken

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        self.provider.broken = False
        try:
            for box in self.boxes.values():
                box.stop()
            for each in self.pending:
                try:
                    each.result(SOON)
                except (SandboxError, TimeoutError):
                    assert each.done(), self.session.explain()
            running = [self.session.run(["true"]) for _ in range(self.cap)]
            for run in running:
                try:
                    assert run.result(SOON).returncode == 0
                except TimeoutError:
                    raise AssertionError(self.session.explain()) from None
        finally:
            self.session.close().result(60)
            _loop.get().set_exception_handler(None)
        assert not self.unhandled
        assert self.provider.most <= self.cap
        assert not self.provider.alive
        assert not self.session._context.lives


class LocalLives(Lives):
    make = FaultyLocal


TestOnFolders = pytest.mark.timeout(900)(Lives.TestCase)
TestOnFolders.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestOnLocal = pytest.mark.timeout(900)(LocalLives.TestCase)
TestOnLocal.settings = settings(
    max_examples=8,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
