"""The ledger has what many processes used, whatever happens to them or to its file."""

import asyncio
import json
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from sandboxkit import ProviderUnavailableError, Session
from sandboxkit.ledger import Amounts, LedgerFile, _ledger, _meter, flush
from sandboxkit.ledger._store import OTHER, RowKey
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from sandboxkit.types import Usage
from tests.components import needs_mounts
from tests.ledger.conftest import Totals

_SECONDS = 150.0
PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())


def program(name: str) -> list[str]:
    return [sys.executable, "-c", PROGRAMS["begin"] + PROGRAMS[name]]


def run_program(name: str, *before: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, *program(name)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def test_tags_are_summed_apart_and_together_and_what_nobody_can_tell_is_not_known(
    used: Totals,
) -> None:
    with Session(FakeProvider(), tags="run:42") as session:
        for kind in ("a", "a", "b"):
            session.run(["true"], tags=["run:42", f"kind:{kind}"]).result(_SECONDS)
    with Session(FakeProvider(), tags="run:43") as session:
        session.run(["true"]).result(_SECONDS)
    assert used(run="42").starts == 3
    assert used(run="42", kind="a").starts == 2
    found = used()
    assert (found.starts, found.processor_known, found.memory_known, found.bytes_known) == (
        4,
        0,
        0,
        0,
    )
    assert 0 < used(kind="b").sandbox_seconds < used(run="42").sandbox_seconds


class CountedProvider(FakeProvider):
    """A FakeProvider whose sandboxes have used what the test says; it counts the readings."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.usage_now = Usage(None, None, None, None)
        self.error: Exception | None = None

    async def metered(self, sandbox_id: str, *, last: bool = False) -> Usage:
        self.readings += 1
        if self.error is not None:
            raise self.error
        return self.usage_now


def test_a_command_costs_no_reading_and_no_write(ledger: LedgerFile) -> None:
    provider = CountedProvider()
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.exec(["true"]).result(_SECONDS)
        began, before = time.monotonic(), provider.readings
        for _ in range(100):
            sandbox.exec(["true"]).result(_SECONDS)
        took, readings = time.monotonic() - began, provider.readings - before
    # At 0.25, 0.5, 1, 2, 4 s ...
    assert readings <= 5 + took / 30


class HereProvider(CountedProvider):
    on_this_machine = True


@pytest.mark.parametrize("kind", [CountedProvider, HereProvider])
def test_a_vendor_is_asked_once_at_the_end_of_a_short_sandbox(
    kind: type[CountedProvider], used: Totals
) -> None:
    provider = kind()
    provider.usage_now = Usage(3.0, None, 1, 1 << 20, 10, 20)
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.exec(["sleep", "0.5"]).result(_SECONDS)
        if provider.on_this_machine:
            until(lambda: provider.readings > 0, "it is read", _SECONDS)
    found = used()
    assert (found.processor_seconds, found.sent_bytes, found.received_bytes) == (3.0, 10, 20)
    assert found.processor_known == found.bytes_known == pytest.approx(found.sandbox_seconds)
    if not provider.on_this_machine:
        assert (provider.readings, found.memory_known) == (1, 0)
    else:
        assert provider.readings > 1
        assert found.memory_known == pytest.approx(found.sandbox_seconds)
        average = found.memory_byte_seconds / found.sandbox_seconds
        assert average == pytest.approx(1 << 20)


def test_a_provider_that_cannot_be_read_fails_no_sandbox(used: Totals) -> None:
    provider = CountedProvider()
    provider.error = ValueError("a bug")
    with Session(provider) as session:
        assert session.run(["sleep", "0.4"]).result(_SECONDS).returncode == 0
    assert used().sandbox_seconds > 0.4
    assert used().processor_known == 0


class FrozenProvider(FakeProvider):
    """A FakeProvider whose readings wait for an agent that is frozen, also when they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.thawed = threading.Event()

    async def metered(self, sandbox_id: str, *, last: bool = False) -> Usage:
        with anyio.CancelScope(shield=True):
            while not self.thawed.is_set():
                await anyio.sleep(0.01)
        raise ProviderUnavailableError("no answer")


def test_a_frozen_agent_delays_a_deletion_by_a_second(
    used: Totals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_meter, "_READ_SECONDS", 1.0)
    provider = FrozenProvider()
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.exec(["sleep", "0.5"]).result(_SECONDS)
        sandbox.stop().result(20)
        provider.thawed.set()
    assert used().sandbox_seconds > 0.5


class SlowProvider(FakeProvider):
    """A FakeProvider whose first reading takes a while; sandboxes use more until the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.allowed = asyncio.Event(), asyncio.Event()

    async def metered(self, sandbox_id: str, *, last: bool = False) -> Usage:
        self.begun.set()
        await self.allowed.wait()
        return Usage(3.0 if last else 1.0, None, None, None)


@pytest.mark.anyio
async def test_a_deletion_during_a_reading_charges_what_was_used_since() -> None:
    provider, charged = SlowProvider(), list[Amounts]()
    meter = _meter.SandboxMeter(provider, "one", charged.append, lambda _: None)
    reading = asyncio.create_task(meter.read())
    await provider.begun.wait()
    ending = asyncio.create_task(meter.end())
    await asyncio.sleep(0)  # it waits for the reading
    provider.allowed.set()
    await asyncio.gather(reading, ending)
    assert sum(each.processor_seconds for each in charged) == 3.0


def test_a_start_that_fails_after_the_creation_is_charged_its_time(used: Totals) -> None:
    with Session(FakeProvider()) as session, pytest.raises(Exception, match="/dev/null"):
        session.run(["true"], files={"/dev/null/x": b""}).result(_SECONDS)
    assert used().starts == 1


def test_a_sandbox_of_a_pool_is_charged_once_to_its_tags(used: Totals) -> None:
    with Session("local", tags="run:42", pool=1, reuse="reset", profile="strict") as session:
        for _ in range(4):
            until(lambda: session.pool_stats().ready > 0, "a sandbox is ready", _SECONDS)
            session.run_python("sum(range(10 ** 7))").result(_SECONDS)
        reset = session.pool_stats().reset
    found = used(run="42")
    assert reset > 0
    assert found.starts < 4
    assert found.processor_seconds > 0.2  # also what was used before the resets
    assert found.processor_known == pytest.approx(found.sandbox_seconds, rel=0.02)


def test_a_locked_file_is_said_once_and_its_amounts_come_later(
    ledger: LedgerFile,
    used: Totals,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_ledger, "_CLOSE_ATTEMPTS", 2)
    ledger.add({}, seconds=1)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # as another writer that hangs
    with closing(other), caplog.at_level(logging.WARNING, "sandboxkit"):
        for said in (0, 1):
            with Session(FakeProvider()) as session:
                assert session.run(["true"]).result(_SECONDS).returncode == 0
            assert len(caplog.records) == said, "the end of a session waits for no file"
            flush().result(_SECONDS)
        (record,) = caplog.records
    assert "database is locked; it is tried again while this process lives" in record.getMessage()
    assert str(ledger.path) in record.getMessage()
    with Session(FakeProvider()) as session:
        session.run(["true"]).result(_SECONDS)
    assert used().starts == 3


@needs_mounts("a small file system")
def test_a_full_disk_is_said_once_and_fails_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    monkeypatch.setenv("SANDBOXKIT_LEDGER", str(full / "ledger.sqlite3"))
    fill = f"mount -t tmpfs -o size=16k none {full} && cat /dev/zero > {full}/rest 2>/dev/null; "
    done = run_program("full_disk", "unshare", "--mount", "sh", "-c", fill + 'exec "$@"', "sh")
    assert done.stdout == "fine\nfine\n", done.stderr
    assert done.stderr.count("cannot be written to the ledger") == 1
    assert "full" in done.stderr.replace(str(full), "")


def test_a_file_that_is_no_ledger_is_said_and_fails_no_sandbox(
    ledger: LedgerFile, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.path.write_bytes(b"something else " * 100)
    with caplog.at_level(logging.WARNING, "sandboxkit"), Session(FakeProvider()) as session:
        assert session.run(["true"]).result(_SECONDS).returncode == 0
        flush().result(_SECONDS)
    assert "not a database" in caplog.text
    assert ledger.path.read_bytes().startswith(b"something else")


def test_many_processes_write_at_once_and_nothing_is_lost(used: Totals) -> None:
    with_all = [
        subprocess.Popen(
            program("many_processes"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=_SECONDS)[0] for process in with_all]
    assert outputs == [""] * 4
    assert used(run="42").starts == 4 * 30


def test_children_forked_while_the_file_is_written_have_a_ledger_of_their_own(used: Totals) -> None:
    done = run_program("forks")
    assert done.returncode == 0, done.stderr
    assert used().starts == 22


def test_a_killed_process_loses_at_most_one_interval(used: Totals) -> None:
    began = time.monotonic()
    with subprocess.Popen(program("killed"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        # Readings at 0.25, 0.5, 1 and 2 s; each is written within a second.
        until(lambda: used(run="42").memory_known > 1.9, "two seconds are written", _SECONDS)
        process.send_signal(signal.SIGKILL)
    found = used(run="42")
    assert found.starts == 1
    assert 1.9 < found.sandbox_seconds < time.monotonic() - began


def test_a_sandbox_that_ended_by_itself_is_charged_no_further(used: Totals) -> None:
    with Session("local") as session:
        asked = time.monotonic()
        sandbox = session.sandbox().start().result(_SECONDS)
        sandbox.renew(1.0).result(_SECONDS)
        ledger = _ledger.of_process()
        assert ledger is not None
        until(lambda: not ledger._meters, "a reading finds that it has ended", _SECONDS)
        most = time.monotonic() - asked
        time.sleep(1)
        sandbox.stop().result(_SECONDS)
    assert 1.0 <= used().sandbox_seconds <= most


def test_paused_time_is_not_charged(used: Totals) -> None:
    def spins(seconds: float) -> bool:
        usage = sandbox.usage().result(_SECONDS)
        return usage is not None and (usage.processor_seconds or 0) > seconds

    with Session("local") as session:
        asked = time.monotonic()
        sandbox = session.sandbox().start().result(_SECONDS)
        began = time.monotonic()
        sandbox.exec(["sh", "-c", "while :; do :; done"])
        until(lambda: spins(0.5), "it has used half a second", _SECONDS)
        least = time.monotonic() - began
        sandbox.pause().result(_SECONDS)
        most = time.monotonic() - asked
        time.sleep(4)
        asked = time.monotonic()
        sandbox.resume().result(_SECONDS)
        began = time.monotonic()
        until(lambda: spins(1.0), "it has used a second", _SECONDS)
        least += time.monotonic() - began
        sandbox.pause().result(_SECONDS)
        most += time.monotonic() - asked
        time.sleep(2)
        sandbox.stop().result(_SECONDS)
    found = used()
    assert least <= found.sandbox_seconds <= most
    assert 1.0 < found.processor_seconds < most + 1
    assert found.processor_known == pytest.approx(found.sandbox_seconds, abs=0.5)


def test_a_file_system_that_hangs_stops_no_fork() -> None:
    done = run_program("hanging")
    assert done.stdout == "True\n", done.stderr


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDBOXKIT_LEDGER", "off")
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Session(FakeProvider()) as session:
        session.run(["true"]).result(_SECONDS)
    flush().result(_SECONDS)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_uses_nothing(used: Totals, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with Session(FakeProvider(), record=file) as session:
        session.run(["true"]).result(_SECONDS)
    assert used().starts == 1
    assert [
        line
        for line in file.read_text().splitlines()
        if "usage" in json.loads(line).get("call", "")
    ] == []
    with Session(replay=file) as session:
        session.run(["true"]).result(_SECONDS)
    assert used().starts == 1


def test_the_file_stays_small_however_many_tags_there_are(ledger: LedgerFile) -> None:
    day = time.strftime("%Y-%m-%d", time.gmtime())
    for part in range(3):
        numbers = range(part * 10_000, (part + 1) * 10_000)
        rows = {RowKey(day, "x", f'{{"n": "{number}"}}'): Amounts(starts=1) for number in numbers}
        ledger.add(rows, seconds=5)
    ledger.add({RowKey(day, "x", '{"n": "7"}'): Amounts(starts=1)}, seconds=5)
    found = ledger.entries({})
    assert len(found) == 20_001
    assert sum(entry.amounts.starts for entry in found) == 30_001
    (other,) = [entry for entry in found if entry.tags == json.loads(OTHER)]
    assert other.amounts.starts == 10_000
    (seventh,) = ledger.entries({"n": "7"})
    assert seventh.amounts.starts == 2


def test_old_days_are_removed(ledger: LedgerFile) -> None:
    days = [
        time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400 * ago)) for ago in (0, 9, 500)
    ]
    ledger.add({RowKey(day, "x", "{}"): Amounts(starts=1) for day in days}, seconds=5)
    assert [entry.day for entry in ledger.entries({})] == [days[1], days[0]]
    assert ledger.prune(days[0]) == 1
    assert [entry.day for entry in ledger.entries({})] == [days[0]]


def test_importing_sandboxkit_does_not_import_sqlite() -> None:
    code = "import sandboxkit, sys; print([name for name in sys.modules if 'sqlite' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
