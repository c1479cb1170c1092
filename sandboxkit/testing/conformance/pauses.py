"""Tests of pause and resume."""

import itertools
import time

from sandboxkit import (
    ConfigurationError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    Sandbox,
    SandboxPausedError,
    SandboxState,
    Session,
)
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine, until
from sandboxkit.testing.conformance._pytest import pytest

_PAUSED = 6.0
"""How long (s) the sandbox is paused: longer than the timeout of the command that runs meanwhile."""
_TICKS = "while :; do date +%s.%N; sleep 0.05; done >>ticks 2>&1"
_LINES = 100_000
_WORKS = f"""
import time
print("ready", flush=True)
for number in range(20):
    time.sleep(0.05)
    print("\\n".join(map(str, range(number * {_LINES // 20}, (number + 1) * {_LINES // 20}))), flush=True)
"""


class PausesConformance(Conformance):
    """`pause()` and `resume()`: honoured, or refused before anything is made."""

    @pytest.fixture
    def pausing(self, session: Session) -> Session:
        """The session, if its provider can pause; the test is skipped if it refuses."""
        try:
            session._provider.check_pause()
        except ConfigurationError:
            sandbox = session.sandbox()
            for call in (sandbox.pause, sandbox.resume):
                with pytest.raises(ConfigurationError, match="pause"):
                    call()
            assert mine(session) == []
            pytest.skip(f"{type(self).__name__}: the provider refuses it")
        return session

    def test_a_paused_sandbox_stands_still_and_goes_on(self, pausing: Session) -> None:
        sandbox = pausing.sandbox().start().result(DEADLINE)
        sandbox.exec(["sh", "-c", f"({_TICKS}) >/dev/null 2>&1 &"], check=True).result(DEADLINE)
        works = sandbox.exec(["python3", "-c", _WORKS], timeout=_PAUSED)
        lines = works.stdout.lines()
        assert next(iter(lines)) == "ready"
        until(lambda: len(self._ticks(sandbox)) > 3, "the program in the background runs")
        for call in (sandbox.pause, sandbox.pause):  # the second does nothing
            call().result(DEADLINE)
        paused = time.time()
        assert sandbox.status().result(DEADLINE).state is SandboxState.PAUSED
        assert [(info.id, info.state) for info in mine(pausing)] == [
            (sandbox.id, SandboxState.PAUSED)
        ]
        for refused in (
            sandbox.exec(["true"]),
            sandbox.read_file("/workspace/ticks"),
            sandbox.write_file("/workspace/new", b"x"),
        ):
            with pytest.raises(SandboxPausedError, match="resume"):
                refused.result(DEADLINE)
        time.sleep(_PAUSED)
        assert not works.done()
        still = time.time() - paused
        for call in (sandbox.resume, sandbox.resume):
            call().result(DEADLINE)
        assert sandbox.status().result(DEADLINE).state is SandboxState.RUNNING
        result = works.result(DEADLINE)
        assert result.returncode == 0
        assert result.stdout.splitlines() == ["ready", *map(str, range(_LINES))]
        before = len(self._ticks(sandbox))
        until(lambda: len(self._ticks(sandbox)) > before + 3, "the background goes on")
        ticks = self._ticks(sandbox)
        gap = max(later - tick for tick, later in itertools.pairwise(ticks))
        assert gap >= still - 0.5, "the program in the background ran on"

    def test_a_paused_command_is_killed_and_a_paused_sandbox_is_stopped(
        self, pausing: Session
    ) -> None:
        sandbox = pausing.sandbox().start().result(DEADLINE)
        late = sandbox.exec(["sh", "-c", "echo ready; exec sleep 600"], deadline=3.0)
        assert next(iter(late.stdout.lines())) == "ready"
        sandbox.pause().result(DEADLINE)
        error = late.exception(3.0 + self.silence_bound)
        assert isinstance(error, ProviderUnavailableError | OutcomeUnknownError), repr(error)
        sandbox.resume().result(DEADLINE)
        assert sandbox.exec(["echo", "works"]).result(DEADLINE).stdout == "works\n"
        sandbox.pause().result(DEADLINE)
        sandbox.stop().result(DEADLINE)
        assert mine(pausing) == []

    def _ticks(self, sandbox: Sandbox) -> list[float]:
        text = sandbox.exec(["cat", "ticks"]).result(DEADLINE).stdout
        return [float(line) for line in text.splitlines()]
