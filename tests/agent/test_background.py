"""A program in the background outlives its command, also if it prints to the command's own streams."""

import pytest

from tests.agent.conftest import Box

pytestmark = pytest.mark.anyio

WAITS = "until test -e {}; do sleep 0.01; done"
PRINTS = f"{WAITS.format('go')}; for n in 1 2 3; do echo $n; echo $n >&2; done; echo all >done"
"""Once its command has ended, it prints to both streams, and then makes a file."""


@pytest.mark.parametrize(
    "start",
    ["{} &", "nohup {} &", "setsid {} &", "{} & disown", "({} &)", "{} 2>&1 | cat &", "exec {} &"],
)
async def test_a_program_left_in_the_background_may_go_on_printing(box: Box, start: str) -> None:
    ran = await box.exec("bash", "-c", start.format(f"bash -c '{PRINTS}'"))
    assert ran.exit.status == 0
    assert (await box.sh(f"touch go; {WAITS.format('done')}; cat done")).stdout == b"all\n"


async def test_more_than_a_pipe_holds_is_dropped_and_does_not_block(box: Box) -> None:
    flood = "head -c 10000000 /dev/zero; echo all >flooded"
    assert (await box.sh(f"({flood}) &")).exit.status == 0
    assert (await box.sh(f"{WAITS.format('flooded')}; cat flooded")).stdout == b"all\n"


async def test_the_agent_closes_a_stream_when_its_last_writer_ends(box: Box) -> None:
    count = "ls /proc/1/fd | wc -l"
    before = (await box.sh(count)).stdout
    for _ in range(20):
        await box.sh("sleep 0.2 &")
    assert (
        await box.sh(f"until test $({count}) -le {int(before)}; do sleep 0.01; done")
    ).exit.status == 0
