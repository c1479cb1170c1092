"""Tests that each hosted vendor has to pass, to derive a class Test... from: beside the contract itself."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sandboxkit import Operation, Sandbox, Session, Snapshot, errors
from sandboxkit.provider import Box, FirstCommand
from sandboxkit.types import SandboxSpec
from tests.emulators._programs import Programs
from tests.hosted.faults import FaultsConformance
from tests.hosted.streams import StreamsConformance
from tests.hosted.vendor import Vendor
from tests.traces import assert_forgotten

LINES = 300
COUNT = f"echo ran >>$1; i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; sleep 0.01; done"
COUNTED = "".join(f"{number}\n" for number in range(1, LINES + 1))


class VendorConformance(FaultsConformance, StreamsConformance, Programs):
    """The tests of a vendor; define `vendor` and `name`."""

    # What cannot work is refused by name, before anything is made.

    def test_a_variable_that_cannot_work_is_named(
        self, server: Any, monkeypatch: pytest.MonkeyPatch, variable: tuple[str, Any, str]
    ) -> None:
        name, value, named = variable
        if value is False:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
        with pytest.raises(errors.SandboxError, match=named), Session(self.vendor.name) as session:
            session.sandbox().start().result(10)
        assert server.alive == []

    def test_an_option_that_the_vendor_lacks_is_named(
        self, server: Any, session: Session, option: tuple[str, Any]
    ) -> None:
        name, value = option
        given: dict[str, Any] = value if isinstance(value, dict) else {name: value or None}
        with pytest.raises(errors.ConfigurationError, match=name):
            session.sandbox(**given)
        assert server.requests == []

    def test_a_start_that_is_refused_is_named(
        self, server: Any, session: Session, refused: tuple[Mapping[str, Any], str, str]
    ) -> None:
        options, kind, named = refused
        with pytest.raises(getattr(errors, kind), match=named):
            session.sandbox(**options).start().result(30)
        assert server.alive == []

    def test_a_lifetime_is_rounded_up(
        self, session: Session, lifetime: tuple[float, float]
    ) -> None:
        info = session.sandbox(lifetime=lifetime[0] or None).start().result(30).status().result(30)
        assert info.expires_at is not None
        assert info.created_at is not None
        assert round((info.expires_at - info.created_at).total_seconds()) == lifetime[1]

    def test_the_doctor_makes_no_sandbox(self, server: Any) -> None:
        provider = self.vendor.provider()
        assert Operation(provider.diagnose()).result(30).available
        Operation(provider.aclose()).result(30)
        assert self.vendor.requests["create"] not in server.requests

    # What a session asks of the vendor, and what it keeps.

    def test_no_creation_comes_before_the_vendors_retry_after(
        self, server: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MODAL_MAX_THROTTLE_WAIT", "1")  # its SDK waits for each by itself, else
        create, jobs = self.vendor.requests["create"], 12
        server.fault(create, "status", per_second=2, **self.vendor.throttled)
        provider = self.vendor.provider(30.0)
        made, refused, early, until = provider.create, 0, 0, 0.0

        async def watched(spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
            nonlocal refused, early, until
            early += time.monotonic() < until
            try:
                box: Box = await made(spec, first)
                return box
            except errors.ProviderUnavailableError as error:
                refused += 1
                until = max(until, time.monotonic() + (error.retry_after or 0.0))
                raise

        monkeypatch.setattr(provider, "create", watched)

        def job(session: Session) -> None:
            while True:
                sandbox = session.sandbox()
                error = sandbox.start().exception(60)
                sandbox.stop().result(60)
                if error is None:
                    return
                assert isinstance(error, errors.ProviderUnavailableError), error

        with Session(provider) as session, ThreadPoolExecutor(6) as threads:
            list(threads.map(job, [session] * jobs))
        Operation(provider.aclose()).result(30)
        assert early == 0
        assert refused > 0
        assert server.requests.count(create) == jobs + refused

    @pytest.mark.anyio
    @pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.nightly)])
    async def test_no_state_is_kept_of_ended_sandboxes(self, server: Any, count: int) -> None:
        await assert_forgotten(lambda: self.vendor.provider(30.0), count)

    def test_a_quiet_command_outlives_the_timeout_of_a_request(self, session: Session) -> None:
        seconds = 3 * self.vendor.timeout + 2
        result = session.sandbox().exec(["sleep", str(seconds)]).result(60)
        assert result.returncode == 0
        assert result.duration > 3 * self.vendor.timeout

    # Connections break under commands: each runs once, and its output is exact all the same.

    def test_a_command_over_breaking_connections_runs_once_and_is_whole(
        self, server: Any, sandbox: Sandbox, way: str
    ) -> None:
        names = [f"ran{number}" for number in range(4)]
        processes = [sandbox.exec(["sh", "-c", COUNT, "sh", name]) for name in names]
        for index, line in enumerate(processes[0].stdout.lines()):
            assert line == str(index + 1)
            if index % 50 == 10:
                server.ask(way)
        for process in processes:
            result = process.result(60)
            assert (result.stdout, result.returncode) == (COUNTED, 0)
        assert sandbox.exec(["cat", *names]).result(60).stdout == "ran\n" * 4

    def test_much_goes_both_ways_over_breaking_connections(
        self, server: Any, sandbox: Sandbox, way: str
    ) -> None:
        data = bytes(index * index % 251 for index in range(1 << 16)) * 64
        running = sandbox.exec(["sh", "-c", "echo ready; sleep 0.3; exec tee in"], stdin=True)
        for at in range(0, len(data), 1 << 20):
            running.stdin.write(data[at : at + (1 << 20)]).result(60)
            server.ask(way)
        running.stdin.close().result(60)
        assert running.result(60).stdout_bytes == b"ready\n" + data
        assert sandbox.read_file("/workspace/in").result(60) == data

    def test_an_idle_sandbox_outlives_its_connection(
        self, server: Any, sandbox: Sandbox, way: str
    ) -> None:
        for _ in range(3):
            server.ask(way)
            assert sandbox.exec(["echo", "hello"]).result(60).stdout == "hello\n"

    # Snapshots.

    def test_a_snapshot_is_used_on_another_machine_and_named_when_it_is_removed(
        self, patient: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = time.time()

        def listed() -> list[Snapshot]:
            return Snapshot.list(provider=self.vendor.name).result(60)

        with patient.sandbox(tags=("run:42",)) as sandbox:
            sandbox.write_file("/workspace/file", b"kept").result(60)
            snapshot = sandbox.snapshot("base", ttl=600).result(60)
        assert [each.info.name for each in listed()] == ["base"]
        tmp_path.chmod(0o700)
        with monkeypatch.context() as other:
            other.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
            with patient.sandbox(snapshot=snapshot.id) as fork:
                assert fork.read_file("/workspace/file").result(60) == b"kept"
            if self.vendor.lists_snapshots:
                (seen,) = listed()
                assert (seen.id, seen.info.name, seen.tags) == (snapshot.id, None, {})
                assert seen.info.expires_at is not None
                assert before + 599 <= seen.info.expires_at.timestamp() <= time.time() + 601
                seen.delete().result(60)
            assert listed() == []
        removed = snapshot.delete().exception(60)
        # By the other machine.
        assert removed is None or isinstance(removed, errors.SnapshotNotFoundError)
        assert listed() == []
        for _ in range(2):  # while the vendor removes it, and afterwards
            with pytest.raises(errors.SnapshotNotFoundError, match=snapshot.id):
                patient.sandbox(snapshot=snapshot).start().result(60)
            time.sleep(0.5)

    def test_more_snapshots_than_a_page_are_listed(self, patient: Session) -> None:
        with patient.sandbox() as sandbox:
            taken = [sandbox.snapshot(f"{number}").result(60) for number in range(4)]
        listed = Snapshot.list(provider=self.vendor.name).result(60)
        assert {each.id for each in listed} == {each.id for each in taken}
        assert {each.info.name for each in listed} == set("0123")


class CostsConformance:
    """Tests of a vendor whose API is HTTP; define `vendor`."""

    vendor: ClassVar[Vendor]

    def test_each_step_makes_no_more_requests_than_it_needs(
        self, server: Any, session: Session, other: Session
    ) -> None:
        def asked(sandbox: Sandbox) -> list[str]:
            made = [each.replace(str(sandbox.id), "ID") for each in server.requests]
            server.clear()
            again = [each.startswith("GET ") and each in made[:at] for at, each in enumerate(made)]
            return [each for each, repeated in zip(made, again, strict=True) if not repeated]

        sandbox = session.sandbox(command=["sleep", "1000"], env={"A": "1"}).start().result(30)
        assert asked(sandbox) == self.vendor.costs["start"]
        counting = sandbox.exec(["sh", "-c", "wc -c; echo err >&2"], stdin=b"x" * (3 << 20))
        result = counting.result(30)
        assert (result.stdout, result.stderr) == ("3145728\n", "err\n")
        with pytest.raises(errors.CommandTimeoutError):
            sandbox.exec(["sleep", "1000"], timeout=0.5).result(30)
        for size in (1000, 1 << 20):
            sandbox.write_file("/workspace/file", b"x" * size).result(30)
            assert sandbox.read_file("/workspace/file").result(30) == b"x" * size
        assert asked(sandbox) == []
        theirs = other.from_id(str(sandbox.id)).result(30)
        assert theirs.exec(["echo", "hello"]).result(30).stdout == "hello\n"
        assert asked(sandbox) == self.vendor.costs["attach"]
        alone = session.sandbox().start().result(30)
        server.clear()
        alone.stop().result(30)
        assert asked(alone) == self.vendor.costs["stop"]


class StrictConformance:
    """Tests of a vendor whose emulator can have machines with root; define `vendor`."""

    def test_strict_sandboxes_start_from_the_files_of_strict_ones(
        self, vendor: Any, rooted: Any
    ) -> None:
        with Session(vendor.name, **vendor.strict) as session:
            with session.sandbox() as base:
                base.write_file("/workspace/file", b"kept").result(60)
                (fork,) = base.fork(1).result(60)
                assert isinstance(fork, Sandbox), fork
            change = "cat file; echo more >>file && id -u; touch /usr/local/bin/x 2>&- && echo bad"
            output = fork.exec(["sh", "-c", change]).result(60).stdout
            assert output.split() == ["kept65534"]
            fork.stop().result(60)
