"""What `set_network` has set holds in forks and snapshots and through a pause, and never in another job."""

from collections.abc import Callable

import pytest

from sandboxkit import Egress, Sandbox, SandboxError, Session
from sandboxkit.errors import PortError
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


def test_a_fork_of_a_sandbox_that_was_cut_off_has_no_network(
    provider: str, rules: Egress, reaches: Reaches
) -> None:
    with Session(provider, network=rules) as session, session.sandbox() as sandbox:
        assert reaches(sandbox) == ["web"]
        sandbox.set_network("none").result(DEADLINE)
        for fork in sandbox.fork(2).result(DEADLINE):
            assert isinstance(fork, Sandbox), fork
            assert reaches(fork) == []
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
    with Session("local", network=rules) as session, session.sandbox() as sandbox:
        with pytest.raises(OSError, match="nowhere"):
            sandbox.set_network(broken).result(DEADLINE)
        assert sandbox.spec.egress is rules
        assert reaches(_fork(sandbox)) == ["web"]
    with Session("local") as session, session.sandbox() as sandbox:
        with pytest.raises(OSError, match="nowhere"):
            sandbox.set_network(broken).result(DEADLINE)
        assert reaches(_fork(sandbox)) == []


def test_a_cut_that_still_closes_connections_holds_for_a_fork(
    rules: Egress, reaches: Reaches
) -> None:
    """Neither call waits for the other."""
    with Session("local", network=rules) as session, session.sandbox() as sandbox:
        with sandbox.connect(proxy_port(sandbox)).result(DEADLINE):
            cutting, forking = sandbox.set_network("none"), sandbox.fork(1)
            cutting.result(DEADLINE)
            [fork] = forking.result(DEADLINE)
        assert isinstance(fork, Sandbox), fork
        assert reaches(fork) == []


@pytest.mark.parametrize("by_id", [False, True])
def test_a_start_from_a_snapshot_has_no_wider_network(
    provider: str, rules: Egress, reaches: Reaches, by_id: bool
) -> None:
    with Session(provider, network=rules) as session, session.sandbox() as sandbox:
        before = sandbox.snapshot().result(DEADLINE)
        sandbox.set_network("none").result(DEADLINE)
        after = sandbox.snapshot().result(DEADLINE)
        of_fork = _fork(sandbox).snapshot().result(DEADLINE)
        for snapshot, expected in ((before, ["web"]), (after, []), (of_fork, [])):
            given = snapshot.id if by_id else snapshot
            with session.sandbox(snapshot=given) as started:
                assert reaches(started) == expected
        with session.sandbox(snapshot=after, network=rules) as asked:
            assert reaches(asked) == ["web"]
        with Session(provider, network=rules) as other, other.sandbox(snapshot=after) as started:
            assert reaches(started) == ["web"]  # its own session asks for it
        for snapshot in (before, after, of_fork):
            _delete(snapshot.delete)


def _delete(call: Callable[[], object]) -> None:
    try:
        call().result(DEADLINE)  # type: ignore[attr-defined] # an Operation
    except SandboxError:
        pass  # a sandbox that still ends uses it; it expires


def test_a_snapshot_gives_no_network_that_the_session_does_not_ask_for(
    rules: Egress, reaches: Reaches
) -> None:
    with Session("local") as session, session.sandbox(network=rules) as sandbox:
        assert reaches(sandbox) == ["web"]
        snapshot = sandbox.snapshot().result(DEADLINE)
        with session.sandbox(snapshot=snapshot) as started:
            assert reaches(started) == []
        snapshot.delete().result(DEADLINE)


def test_a_sandbox_reached_by_its_id_says_nothing_about_networks(
    rules: Egress, reaches: Reaches
) -> None:
    with Session("local", network=rules) as session, session.sandbox() as sandbox:
        assert sandbox.id is not None
        snapshot = session.from_id(sandbox.id).result(DEADLINE).snapshot().result(DEADLINE)
        with session.sandbox(snapshot=snapshot) as started:
            assert reaches(started) == ["web"]
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
    with Session(
        provider, network=rules if own else "none", pool=1, profile="strict", reuse="reset"
    ) as session:
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


def test_a_start_from_a_snapshot_keeps_rules_that_were_narrowed(
    provider: str, rules: Egress, wider: Egress, reaches: Reaches
) -> None:
    with Session(provider, network=wider) as session, session.sandbox() as sandbox:
        sandbox.set_network(rules).result(DEADLINE)
        snapshot = sandbox.snapshot().result(DEADLINE)
        with session.sandbox(snapshot=snapshot) as later:
            assert reaches(later) == ["web"]
        with session.sandbox(snapshot=snapshot, network=wider) as asked:
            assert reaches(asked) == ["web", "other"]
        snapshot.delete().result(DEADLINE)
