"""Mutants of egress, each with one defect: the test that is there for it fails."""

from collections.abc import Callable

import anyio
import pytest

from sandboxkit import CommandFailedError, Sandbox
from sandboxkit.egress import _http, _paths, _proxy, _resolve, _tls
from sandboxkit.egress._incoming import Incoming
from sandboxkit.egress._refused import EgressRefusedError
from sandboxkit.egress._rules import Credential, Egress
from tests.egress import test_attacks, test_credentials, test_egress
from tests.egress.world import DEADLINE, Authority, Names, Origin, Records, egress, proxy_port

Patch = pytest.MonkeyPatch


async def _dial_by_name(name: str, addresses: list[str], port: int) -> tuple[object, str]:
    try:
        return await anyio.connect_tcp(name, port), addresses[0]
    except OSError as error:
        raise EgressRefusedError(502, str(error)) from error


async def _any_hello(incoming: Incoming) -> tuple[bytes, str]:
    header = await incoming.exactly(5)
    return header + await incoming.exactly(int.from_bytes(header[3:], "big")), "web.test"


async def _no_end(phase: object) -> None:
    pass


def _first_length(head: _http.RequestHead) -> int:
    return int((head.values("content-length") or ["0"])[0])


def _rebound(names: Names, origin: Origin, records: Records, **_: object) -> None:
    test_egress.test_a_name_is_looked_up_once_and_a_second_answer_is_never_used(
        names, origin, records
    )


def _phase(names: Names, origin: Origin, secure: Origin, records: Records, **_: object) -> None:
    test_egress.test_a_phase_without_network_cuts_connections_and_a_later_one_has_the_same_port(
        "local", names, origin, secure, records
    )


def _attack(name: str) -> Callable[..., None]:
    (attack,) = (each for each in test_attacks.ATTACKS if each.name == name)

    def check(names: Names, origin: Origin, records: Records, shared: Sandbox, **_: object) -> None:
        rules = egress(records, f"web.test:{origin.port}", "*.bad.test")
        shared.set_network(rules).result(DEADLINE)
        target = (shared, proxy_port(shared))
        test_attacks.test_an_attack_is_refused_and_recorded(
            attack, target, (origin, records), names
        )

    return check


def _api_attack(name: str) -> Callable[..., None]:
    (attack,) = (each for each in test_credentials.ATTACKS if each.name == name)

    def check(
        names: Names,
        secure: Origin,
        authority: Authority,
        records: Records,
        shared: Sandbox,
        **_: object,
    ) -> None:
        test_credentials.test_everything_else_is_refused_and_recorded(
            attack, names, secure, authority, records, shared
        )

    return check


MUTANTS: dict[str, tuple[object, str, object, Callable[..., None]]] = {
    "resolves twice": (_proxy, "dial", _dial_by_name, _rebound),
    "trusts the name of CONNECT": (
        _tls,
        "client_hello",
        _any_hello,
        _attack("TLS for another name"),
    ),
    "takes no notice of SSH": (_tls, "client_hello", _any_hello, _attack("SSH")),
    "leaves connections open between phases": (_proxy._Phase, "end", _no_end, _phase),
    "dials any address": (_resolve, "is_public", lambda _: True, _attack("a name for loopback")),
    "allows every name": (Egress, "allows", lambda *_: True, _attack("another port")),
    "takes the first length": (_http, "body_length", _first_length, _attack("both lengths")),
    "takes one of two lengths": (_http, "body_length", _first_length, _attack("two lengths")),
    "takes any path for plain": (
        _paths,
        "is_plain",
        lambda _: True,
        _api_attack("the folder above"),
    ),
    "allows every path": (Credential, "allows_path", lambda *_: True, _api_attack("another path")),
}


@pytest.fixture
def check(
    names: Names,
    origin: Origin,
    secure: Origin,
    authority: Authority,
    records: Records,
    shared: Sandbox,
) -> Callable[[Callable[..., None]], None]:
    """Run a test with what it needs."""
    given = {"names": names, "origin": origin, "secure": secure, "authority": authority}
    return lambda test: test(**given, records=records, shared=shared)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(
    mutant: str, monkeypatch: Patch, check: Callable[[Callable[..., None]], None]
) -> None:
    where, name, defect, test = MUTANTS[mutant]
    for module in (test_attacks, test_egress, test_credentials):
        monkeypatch.setattr(module, "DEADLINE", 5.0)
    monkeypatch.setattr(where, name, defect)
    with pytest.raises((AssertionError, CommandFailedError, TimeoutError, pytest.fail.Exception)):
        check(test)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_the_defect_the_same_test_passes(
    mutant: str, check: Callable[[Callable[..., None]], None]
) -> None:
    check(MUTANTS[mutant][3])
