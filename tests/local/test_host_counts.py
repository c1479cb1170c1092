"""A sandbox of root's cannot use up what the kernel counts for other sandboxes."""

import pytest

from sandboxkit import Session
from tests.components import needs_root
from tests.host_counts import ATTACKS, VICTIMS

pytestmark = needs_root("an ordinary user's sandboxes share it")
SECONDS = 60


@pytest.mark.parametrize("what", ATTACKS)
def test_other_sandboxes_keep_their_full_budget(what: str) -> None:
    with Session("local") as session:
        attacker = session.sandbox()
        attack = attacker.exec(["python3", "-c", ATTACKS[what]]).result(SECONDS)
        assert int(attack.stdout) > 20, attack.stderr
        for _ in range(2):
            victim = session.run(["python3", "-c", VICTIMS[what]]).result(SECONDS)
            assert victim.stdout == "fine\n", victim.stderr
        job = session.run_python(VICTIMS[what]).result(SECONDS)
        assert job.stdout == "fine\n", job.stderr
        # The sandbox that it was used up in can still be used.
        assert attacker.exec(["echo", "alive"]).result(SECONDS).stdout == "alive\n"


def test_commands_have_small_budgets_of_what_is_counted_for_a_user() -> None:
    script = "ulimit -Hn; ulimit -Hi; ulimit -Hq; ulimit -Hl; ulimit -Hc"
    code = "import resource as r\nfor n in ('NOFILE', 'SIGPENDING', 'MSGQUEUE', 'MEMLOCK'):"
    code += "\n    print(r.getrlimit(getattr(r, 'RLIMIT_' + n))[1])"
    with Session("local") as session:
        box = session.sandbox()
        found = box.exec(["bash", "-c", script]).result(SECONDS).stdout.split()
        assert found == ["4096", "1024", "131072", "64", "0"]
        for ran in (
            box.exec(["python3", "-c", code]).result(SECONDS),
            session.run_python(code).result(SECONDS),
        ):
            assert ran.stdout.split() == ["4096", "1024", "131072", "65536"]
