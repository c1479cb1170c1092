"""What a command may do to the agent: nothing."""

import pytest

from tests.agent.conftest import Box

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["box", "user_box"])
def any_box(request: pytest.FixtureRequest) -> Box:
    box: Box = request.getfixturevalue(request.param)
    return box


async def test_commands_have_no_capabilities_and_gain_none(any_box: Box) -> None:
    status = (await any_box.exec("cat", "/proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"


@pytest.mark.parametrize(
    "path", ["mem", "environ", "maps", "fd/0", "root/etc/passwd", "task/1/mem"]
)
async def test_pid_1_cannot_be_read(any_box: Box, path: str) -> None:
    run = await any_box.exec("head", "-c1", f"/proc/1/{path}")
    assert run.status != 0
    assert run.stdout == b""


async def test_pid_1_cannot_be_killed_stopped_or_traced(any_box: Box) -> None:
    for number in range(1, 65):
        await any_box.sh(f"kill -{number} 1; kill -{number} 2")
    queued = """if True:
        import ctypes
        info = (ctypes.c_int * 32)()
        for number in range(1, 65):
            info[0], info[2] = number, -1
            ctypes.CDLL(None).syscall(129, 1, number, ctypes.byref(info))
    """
    assert (await any_box.exec("python3", "-c", queued)).status == 0
    trace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert (await any_box.exec("python3", "-c", trace)).stdout == b"-1\n"
    assert (await any_box.exec("true")).status == 0


async def test_commands_inherit_only_their_three_descriptors(any_box: Box) -> None:
    run = await any_box.sh("ls /proc/$$/fd")
    assert run.stdout.split() == [b"0", b"1", b"2"]


async def test_signal_handling_is_the_default(any_box: Box) -> None:
    status = (await any_box.exec("cat", "/proc/self/status")).stdout.decode()
    for name in ("SigIgn", "SigBlk"):
        assert f"{name}:\t{0:016x}" in status
