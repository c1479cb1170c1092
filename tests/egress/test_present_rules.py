"""What `set_network` has set holds in forks and snapshots and through a pause, and never in another job."""

from collections.abc import Callable

import pytest

from sandboxkit import Egress, Sandbox, Session
from sandboxkit.errors import PortError
from sandboxkit.types import Network
from tests.egress.conftest import DEADLINE, PROGRAMS, World, out, proxy_port

Reaches = Callable[[Sandbox], list[str]]


@pytest.fixture
def rules(world: World) -> Egress:
    """Rules that let a sandbox reach one name."""
    return world.rules()


@pytest.fixture
def wider(world: World) -> Egress:
    """Rules that let a sandbox reach two names."""
    return world.rules(world.web, f"other.test:{world.origin.port}")


@pytest.fixture
def reaches(world: World) -> Reaches:
    """Return which names a sandbox reaches, from a new command."""

    def which(sandbox: Sandbox) -> list[str]:
        port, code = world.origin.port, PROGRAMS["try_get"]
        names = ("web", "other")
        found = {name: out(sandbox, code, f"http://{name}.test:{port}/") for name in names}
        return [name for name in names if found[name].startswith("origin:")]

    return which


def _fork(sandbox: Sandbox) -> Sandbox:
    [fork] = sandbox.fork(1).result(DEADLINE)
    assert isinstance(fork, Sandbox), fork
    return fork


def test_a_fork_of_a_cut_off_sandbox_is_cut_off(
    provider: str, rules: Egress, reaches: Reaches
) -> None:
    with Session(provider, network=rules) as session, session.sandbox() as sandbox:
        assert reaches(sandbox) == ["web"]
        sandbox.set_network("none").result(DEADLINE)
        again = _fork(_fork(sandbox))
        assert reaches(again) == []
        again.set_network(rules).result(DEADLINE)
        assert reaches(again) == ["web"]
        assert reaches(sandbox) == []


def test_a_fork_has_the_newest_rules(
    provider: str, rules: Egress, wider: Egress, reaches: Reaches
) -> None:
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.set_network(wider).result(DEADLINE)
        first = _fork(sandbox)
        assert reaches(first) == ["web", "other"]
        sandbox.set_network(rules).result(DEADLINE)
        assert reaches(_fork(sandbox)) == ["web"]
        assert reaches(first) == ["web", "other"]
        first.set_network("none").result(DEADLINE)
        assert reaches(sandbox) == ["web"]


def test_rules_that_could_not_be_applied_are_in_no_fork(rules: Egress, reaches: Reaches) -> None:
    broken = Egress(allow=["other.test"], log="/nowhere/log")
    cases: tuple[tuple[Egress | Network, list[str]], ...] = ((rules, ["web"]), ("none", []))
    for network, expected in cases:
        with Session("local", network=network) as session, session.sandbox() as sandbox:
            with pytest.raises(OSError, match="nowhere"):
                sandbox.set_network(broken).result(DEADLINE)
            assert sandbox.spec.egress is (rules if expected else None)
            assert reaches(_fork(sandbox)) == expected


def test_a_cut_that_goes_on_holds_for_a_fork(rules: Egress, reaches: Reaches) -> None:
    """Neither call waits for the other."""
    with Session("local", network=rules) as session, session.sandbox() as sandbox:
        with sandbox.connect(proxy_port(sandbox)).result(DEADLINE):
            cutting, fork = sandbox.set_network("none"), _fork(sandbox)
            cutting.result(DEADLINE)
        assert reaches(fork) == []


@pytest.mark.parametrize("by_id", [False, True])
def test_a_start_from_a_snapshot_has_no_wider_network(
    provider: str, rules: Egress, wider: Egress, reaches: Reaches, by_id: bool
) -> None:
    with Session(provider, network=wider) as session, session.sandbox() as sandbox:
        before = sandbox.snapshot().result(DEADLINE)
        sandbox.set_network(rules).result(DEADLINE)
        narrowed = sandbox.snapshot().result(DEADLINE)
        sandbox.set_network("none").result(DEADLINE)
        after = sandbox.snapshot().result(DEADLINE)
        of_fork = _fork(sandbox).snapshot().result(DEADLINE)
        taken = {before: ["web", "other"], narrowed: ["web"], after: [], of_fork: []}
        for snapshot, expected in taken.items():
            given = snapshot.id if by_id else snapshot
            with session.sandbox(snapshot=given) as started:
                assert reaches(started) == expected
        with session.sandbox(snapshot=after, network=wider) as asked:
            assert reaches(asked) == ["web", "other"]
        with Session(provider, network=rules) as other, other.sandbox(snapshot=after) as started:
            assert reaches(started) == ["web"]  # its own session asks for it
        for snapshot in taken:
            snapshot.delete().exception(DEADLINE)  # one that still ends may use it; it expires


@pytest.mark.parametrize("of_session", [True, False])
def test_a_snapshot_gives_no_network_that_its_session_does_not_ask_for(
    rules: Egress, reaches: Reaches, of_session: bool
) -> None:
    """A sandbox that is reached by its id says nothing about networks."""
    own: Egress | Network = rules if of_session else "none"
    with Session("local", network=own) as session, session.sandbox(network=rules) as sandbox:
        reached = session.from_id(str(sandbox.id)).result(DEADLINE) if of_session else sandbox
        assert reaches(sandbox) == ["web"]
        snapshot = reached.snapshot().result(DEADLINE)
        with session.sandbox(snapshot=snapshot) as started:
            assert reaches(started) == (["web"] if of_session else [])
        snapshot.delete().result(DEADLINE)


def test_a_pause_keeps_what_was_set(
    provider: str, rules: Egress, wider: Egress, reaches: Reaches
) -> None:
    with Session(provider, network=rules) as session, session.sandbox() as sandbox:
        sandbox.set_network("none").result(DEADLINE)
        sandbox.pause().result(DEADLINE)
        sandbox.resume().result(DEADLINE)
        assert reaches(sandbox) == []
        sandbox.set_network(wider).result(DEADLINE)
        sandbox.pause().result(DEADLINE)
        sandbox.set_network("none").result(DEADLINE)
        sandbox.resume().result(DEADLINE)
        assert reaches(sandbox) == []


@pytest.mark.parametrize("own", [True, False], ids=["the session has rules", "it has none"])
def test_a_job_s_rules_end_with_the_job(
    provider: str, rules: Egress, wider: Egress, reaches: Reaches, own: bool
) -> None:
    expected = ["web"] if own else []
    network: Egress | Network = rules if own else "none"
    with Session(provider, network=network, pool=1, profile="strict", reuse="reset") as session:
        for changed in ("none", wider, rules):
            with session.sandbox() as job:
                assert reaches(job) == expected
                job.set_network(changed).result(DEADLINE)
                port = proxy_port(job) if isinstance(changed, Egress) else 0
            with session.sandbox() as after:
                assert reaches(after) == expected
                if port and (not own or proxy_port(after) != port):
                    with pytest.raises(PortError):
                        after.connect(port).result(DEADLINE)
