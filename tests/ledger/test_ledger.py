"""The ledger has what many processes used, whatever happens to them or to its file."""

import asyncio
import json
import logging
import math
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from sandboxkit import ProviderUnavailableError, Session
from sandboxkit.ledger import Amounts, LedgerFile, _ledger, _meter, flush
from sandboxkit.ledger._store import OTHER, RowKey
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import SandboxSpec, Usage
from tests.components import needs_mounts
from tests.ledger.conftest import Totals
from tests.pool.providers import line_of

Log: TypeAlias = pytest.LogCaptureFixture
_SECONDS = 150.0
PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())


def program(name: str) -> list[str]:
    return [sys.executable, "-c", PROGRAMS["begin"] + PROGRAMS[name]]


def run_program(name: str, *before: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, *program(name)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def test_tags_are_summed_and_what_nobody_can_tell_is_not_known(used: Totals) -> None:
    with Session(FakeProvider(), tags="run:42") as session:
        for kind in ("a", "a", "b"):
            session.run(["true"], tags=["run:42", f"kind:{kind}"]).result(_SECONDS)
    with Session(FakeProvider(), tags="run:43") as session:
        session.run(["true"]).result(_SECONDS)
    assert used(run="42").starts == 3
    assert used(run="42", kind="a").starts == 2
    found = used()
    known = (found.processor_known, found.memory_known, found.bytes_known)
    assert (found.starts, *known) == (4, 0, 0, 0)
    assert 0 < used(kind="b").sandbox_seconds < used(run="42").sandbox_seconds


class CountedProvider(FakeProvider):
    """A FakeProvider whose sandboxes have used what the test says; it counts the readings."""

    def __init__(self) -> None:
        super().__init__(_CountedBox)
        self.readings = 0
        self.usage_now = Usage(None, None, None, None)
        self.error: Exception | None = None


class _CountedBox(FakeBox):
    async def metered(self, *, last: bool = False) -> Usage:
        assert isinstance(self.provider, CountedProvider)
        self.provider.readings += 1
        if self.provider.error is not None:
            raise self.provider.error
        return self.provider.usage_now


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


@pytest.mark.parametrize("here", [True, False])
def test_a_vendor_is_asked_once_at_the_end_of_a_short_sandbox(
    here: bool, used: Totals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountedProvider, "on_this_machine", here)
    provider = CountedProvider()
    provider.usage_now = Usage(0.3, None, 1, 1 << 20, 10, 20)
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.exec(["sleep", "0.5"]).result(_SECONDS)
        if here:
            until(lambda: provider.readings > 0, "it is read", _SECONDS)
    found = used()
    assert (found.processor_seconds, found.sent_bytes, found.received_bytes) == (0.3, 10, 20)
    assert found.processor_known == found.bytes_known == pytest.approx(found.sandbox_seconds)
    if not here:
        assert (provider.readings, found.memory_known) == (1, 0)
    else:
        assert provider.readings > 1
        assert found.memory_known == pytest.approx(found.sandbox_seconds)
        assert found.memory_byte_seconds == pytest.approx(found.sandbox_seconds * (1 << 20))


def test_a_provider_that_cannot_be_read_fails_no_sandbox(used: Totals) -> None:
    provider = CountedProvider()
    provider.error = ValueError("a bug")
    with Session(provider) as session:
        assert session.run(["sleep", "0.4"]).result(_SECONDS).returncode == 0
    assert used().sandbox_seconds > 0.4
    assert used().processor_known == 0


def test_a_frozen_agent_delays_a_deletion_by_a_second(
    used: Totals, monkeypatch: pytest.MonkeyPatch
) -> None:
    thawed = threading.Event()

    async def frozen(*_: object, last: bool = False) -> Usage:
        with anyio.CancelScope(shield=True):  # it waits also when it is cancelled
            while not thawed.is_set():
                await anyio.sleep(0.01)
        raise ProviderUnavailableError("no answer")

    monkeypatch.setattr(_meter, "_READ_SECONDS", 1.0)
    monkeypatch.setattr(FakeBox, "metered", frozen)
    with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        sandbox.exec(["sleep", "0.5"]).result(_SECONDS)
        sandbox.stop().result(20)
        thawed.set()
    assert used().sandbox_seconds > 0.5


@pytest.mark.anyio
async def test_a_deletion_during_a_reading_charges_what_was_used_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, allowed, charged = asyncio.Event(), asyncio.Event(), list[Amounts]()

    async def slow(*_: object, last: bool = False) -> Usage:
        begun.set()
        await allowed.wait()
        return Usage(0.3 if last else 0.1, None, None, None)

    monkeypatch.setattr(FakeBox, "metered", slow)
    of = (SandboxSpec(), FakeProvider().box("one"))
    meter = _meter.SandboxMeter(*of, charged.append, lambda _: None)
    reading = asyncio.create_task(meter.read())
    await begun.wait()
    ending = asyncio.create_task(meter.end())
    await asyncio.sleep(0)  # it waits for the reading
    allowed.set()
    await asyncio.gather(reading, ending)
    assert sum(each.processor_seconds for each in charged) == pytest.approx(0.3)


@pytest.mark.anyio
@pytest.mark.parametrize("said", [2.0**62, math.inf, math.nan, -1.0, 0.1])
async def test_what_a_sandbox_says_of_itself_counts_within_its_limits(said: float) -> None:
    provider, charged, total = CountedProvider(), list[Amounts](), Amounts()
    spec = SandboxSpec(cpus=2, memory_mb=64)
    meter = _meter.SandboxMeter(spec, provider.box("one"), charged.append, lambda _: None)
    for each in (said, 0.0, said):  # what was counted before is not counted again
        whole = int(each) if math.isfinite(each) else each
        provider.usage_now = Usage(each, None, 1, whole, whole, whole)  # type: ignore[arg-type]  # lies
        await meter.read()
    await meter.end()
    for amounts in charged:
        total.add(amounts)
    second = total.sandbox_seconds + _meter._SLACK_SECONDS
    assert 0 <= total.processor_seconds <= (0.1 if said == 0.1 else 2 * second)
    assert 0 <= total.memory_byte_seconds <= (64 << 20) * total.sandbox_seconds
    assert 0 <= total.sent_bytes == total.received_bytes <= _meter._MOST_BYTES * second


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
    ledger: LedgerFile, used: Totals, caplog: Log, monkeypatch: pytest.MonkeyPatch
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
def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.mkdir()
    monkeypatch.setenv("SANDBOXKIT_LEDGER", str(full / "ledger.sqlite3"))
    fill = f"mount -t tmpfs -o size=16k none {full} && cat /dev/zero > {full}/rest 2>/dev/null; "
    done = run_program("full_disk", "unshare", "--mount", "sh", "-c", fill + 'exec "$@"', "sh")
    assert done.stdout == "fine\nfine\n", done.stderr
    assert done.stderr.count("cannot be written to the ledger") == 1
    assert "full" in done.stderr.replace(str(full), "")


def test_a_file_that_is_no_ledger_fails_no_sandbox(ledger: LedgerFile, caplog: Log) -> None:
    ledger.path.write_bytes(b"something else " * 100)
    with caplog.at_level(logging.WARNING, "sandboxkit"), Session(FakeProvider()) as session:
        assert session.run(["true"]).result(_SECONDS).returncode == 0
        flush().result(_SECONDS)
    assert "not a database" in caplog.text
    assert ledger.path.read_bytes().startswith(b"something else")


def test_many_processes_write_at_once_and_nothing_is_lost(used: Totals) -> None:
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(run_program, ["many_processes"] * 4))
    assert [(each.stdout, each.stderr) for each in done] == [("", "")] * 4
    assert used(run="42").starts == 4 * 30


def test_children_forked_while_the_file_is_written_have_a_ledger_of_their_own(used: Totals) -> None:
    done = run_program("forks")
    assert done.returncode == 0, done.stderr
    assert used().starts == 22


def test_a_killed_process_loses_at_most_one_interval(used: Totals) -> None:
    began = time.monotonic()
    with subprocess.Popen(program("killed"), stdout=subprocess.PIPE, text=True) as process:
        assert line_of(process) == "started"
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
    least = most = 0.0

    def spins(seconds: float) -> bool:
        usage = sandbox.usage().result(_SECONDS)
        return usage is not None and (usage.processor_seconds or 0) > seconds

    with Session("local") as session:
        sandbox = session.sandbox()
        for begin, until_used, pause in (("start", 0.5, 4), ("resume", 1.0, 2)):
            asked = time.monotonic()
            getattr(sandbox, begin)().result(_SECONDS)
            began = time.monotonic()
            if pause == 4:
                sandbox.exec(["sh", "-c", "while :; do :; done"])
            until(lambda: spins(until_used), "it has used that time", _SECONDS)  # noqa: B023
            least += time.monotonic() - began
            sandbox.pause().result(_SECONDS)
            most += time.monotonic() - asked
            time.sleep(pause)
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
    calls = [json.loads(line).get("call", "") for line in file.read_text().splitlines()]
    assert not [call for call in calls if "usage" in call]
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
    before = [time.gmtime(time.time() - 86400 * ago) for ago in (0, 9, 500)]
    days = [time.strftime("%Y-%m-%d", each) for each in before]
    ledger.add({RowKey(day, "x", "{}"): Amounts(starts=1) for day in days}, seconds=5)
    assert [entry.day for entry in ledger.entries({})] == [days[1], days[0]]
    assert ledger.prune(days[0]) == 1
    assert [entry.day for entry in ledger.entries({})] == [days[0]]


def test_importing_sandboxkit_does_not_import_sqlite() -> None:
    code = "import sandboxkit, sys; print([name for name in sys.modules if 'sqlite' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
