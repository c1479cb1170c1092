"""The ledger's sums are those of the kernel's control groups, within 2 %."""

import subprocess
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.providers.local import _cgroup
from tests.components import lack, without_control_group
from tests.docker_here import require_docker
from tests.ledger.conftest import Totals

GROUPS = Path("/sys/fs/cgroup")
WITHIN = 0.02
PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
HELD = 600 << 20
HOLD = f"held = b'x' * {HELD}; print(len(held), flush=True); import time; time.sleep(60)"


def group_file(sandbox_id: str, provider: str, controller: str, v1: str, v2: str) -> Path:
    """The file of the sandbox's own control group, in the hierarchy that this machine has."""
    name = sandbox_id
    if provider == "docker":
        command = ["docker", "inspect", "--format", "{{.Id}}", sandbox_id]
        name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    single = (GROUPS / "cgroup.controllers").exists()
    root, file = (GROUPS, v2) if single else (GROUPS / controller, v1)
    (found,) = {path.resolve() for path in root.glob(f"**/*{name}*/{file}")}
    return found


def processor_seconds(file: Path) -> float:
    text = file.read_text()
    if text.strip().isdecimal():
        return int(text) / 1e9
    return int(text.split("usage_usec ")[1].split()[0]) / 1e6


def resident(file: Path) -> int:
    values = dict(line.split() for line in file.read_text().splitlines())
    return int(values.get("total_rss") or values["anon"])


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "docker":
        require_docker()
    return name


def test_processor_seconds_are_the_control_groups(provider: str, used: Totals) -> None:
    if provider == "local" and "cpu" not in _cgroup.available():
        lack(without_control_group("cpu"))
    counted = 0.0
    with Session(provider, tags="run:42") as session:
        for _ in range(2):
            sandbox = session.sandbox()
            sandbox.exec(["python3", "-c", PROGRAMS["burn"]]).result(60)
            sandbox.exec(["python3", "-c", PROGRAMS["afterwards"]]).result(60)
            assert sandbox.id is not None
            file = group_file(sandbox.id, provider, "cpuacct", "cpuacct.usage", "cpu.stat")
            counted += processor_seconds(file)
            sandbox.stop().result(60)
    found = used(run="42")
    assert counted > 1.0
    assert found.processor_seconds == pytest.approx(counted, rel=WITHIN)
    assert found.processor_known == pytest.approx(found.sandbox_seconds, rel=WITHIN)
    assert found.starts == 2


def resident_bounds(provider: str) -> tuple[float, float]:
    """Hold memory in a sandbox for ten seconds; return how many byte-seconds that is at least and at most."""
    with Session(provider, tags=f"run:{provider}", memory_mb=1024) as session:
        sandbox = session.sandbox()
        made = time.monotonic()
        sandbox.start().result(60)
        assert sandbox.id is not None
        file = group_file(sandbox.id, provider, "memory", "memory.stat", "memory.stat")
        process = sandbox.exec(["python3", "-c", HOLD])
        before, counted, began = time.monotonic(), 0.0, time.monotonic()
        rose = None
        while (now := time.monotonic()) < began + 10:
            held = resident(file)
            counted += held * (now - before)
            before = now
            if rose is None and held > HELD / 2:
                rose = now
            time.sleep(0.02)
        ended = time.monotonic()
        assert process.poll() is None
        sandbox.stop().result(60)
        process.exception(60)
    assert counted > 5 * HELD
    assert rose is not None
    # Readings are as far apart as the sandbox is old; a rise between two is charged as if it were even.
    unsure = counted * WITHIN + HELD * (rose - made) / 2
    return counted - unsure, counted + unsure + HELD * (time.monotonic() - ended)


@pytest.mark.alone  # both are sums over time, of readings that other tests would delay
def test_memory_seconds_are_the_control_groups(used: Totals) -> None:
    require_docker()
    providers = ("local", "docker")
    with ThreadPoolExecutor(len(providers)) as threads:
        bounds = list(threads.map(resident_bounds, providers))
    for provider, (least, most) in zip(providers, bounds, strict=True):
        found = used(run=provider)
        assert least < found.memory_byte_seconds < most
        assert found.memory_known == pytest.approx(found.sandbox_seconds, rel=WITHIN)


def test_sandbox_seconds_and_bytes_are_what_was_asked_for(provider: str, used: Totals) -> None:
    with Session(provider, tags="run:42") as session:
        sandbox = session.sandbox()
        asked = time.monotonic()
        sandbox.start().result(60)
        began = time.monotonic()
        sandbox.write_file("/tmp/sent", b"s" * 3_000_000).result(60)
        sandbox.exec(["head", "-c", "5000000", "/dev/zero"]).result(60)
        time.sleep(1.5)
        least = time.monotonic() - began
        sandbox.stop().result(60)
        most = time.monotonic() - asked
    found = used(run="42")
    assert least <= found.sandbox_seconds <= most
    assert found.sent_bytes == pytest.approx(3_000_000, rel=WITHIN)
    assert found.received_bytes == pytest.approx(5_000_000, rel=WITHIN)
    assert found.bytes_known == pytest.approx(found.sandbox_seconds, rel=WITHIN)
