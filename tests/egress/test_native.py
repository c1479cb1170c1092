"""`Egress(native=True)`: the vendors' own lists of allowed servers, as their SDKs send them."""

from collections.abc import Iterator
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Credential, Egress, Session
from tests.daytona.server import emulator as daytona_emulator
from tests.e2b.server import E2BServer
from tests.e2b.server import emulator as e2b_emulator
from tests.emulators._server import Server
from tests.emulators.modal.client import modal_emulator

DEADLINE = 60
NAMES = Egress(allow=["PyPI.org", "*.github.com"], native=True)
NETWORKS = Egress(allow=["10.1.0.0/16", "192.0.2.1"], native=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"allow": ["pypi.org:443"]}, "'pypi.org:443'"),
        ({"allow": ["*"]}, r"'\*'"),
        ({"allow": ["0.0.0.0/0"]}, "'0.0.0.0/0'"),
        ({"allow": ["https://pypi.org"]}, "'https://pypi.org'"),
        ({"allow": ["10.1.0.1/16"]}, "'10.1.0.1/16'"),
        ({"allow": ["2001:db8::/32"]}, "'2001:db8::/32'"),
        ({"allow": []}, "allows nothing"),
        ({"allow": ["pypi.org"], "private": ["10.0.0.0/8"]}, r"Egress\(private=\.\.\.\)"),
        ({"allow": ["pypi.org"], "hosts": {"a": "10.0.0.1"}}, r"Egress\(hosts=\.\.\.\)"),
        ({"allow": ["pypi.org"], "log": print}, r"Egress\(log=\.\.\.\)"),
        ({"allow": ["pypi.org"], "max_bytes": 1}, r"Egress\(max_bytes=\.\.\.\)"),
        (
            {"allow": ["pypi.org"], "credentials": [Credential("a.test", {"A": "secret"})]},
            r"Egress\(credentials=\.\.\.\)",
        ),
    ],
)
def test_what_no_vendor_can_do_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        Egress(native=True, **options)
    assert "secret" not in str(caught.value)


def test_a_rule_without_native_is_no_network() -> None:
    with pytest.raises(ConfigurationError, match=r"10\.1\.0\.0/16"):
        Egress(allow=["10.1.0.0/16"])


def test_a_provider_without_a_list_of_its_own_refuses_it() -> None:
    with (
        Session("local") as session,
        pytest.raises(ConfigurationError, match=r"'local' cannot honour Egress\(native"),
    ):
        session.sandbox(network=NAMES)


@pytest.fixture(scope="module")
def e2b() -> Iterator[E2BServer]:
    with e2b_emulator() as server:
        yield server


@pytest.fixture(scope="module")
def daytona() -> Iterator[Server]:
    with daytona_emulator() as server:
        yield server


def environment(session: Session, network: Egress) -> str:
    """Start a sandbox, and return the variables of a command in it."""
    sandbox = session.sandbox(network=network)
    variables = sandbox.exec(["env"]).result(DEADLINE).stdout
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        sandbox.set_network("none")
    return variables


def test_e2b_gets_its_list(e2b: E2BServer) -> None:
    with Session("e2b") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        assert [(each["allowOut"], each["denyOut"]) for each in e2b.networks] == [
            (["pypi.org", "*.github.com"], ["0.0.0.0/0"]),
            (["10.1.0.0/16", "192.0.2.1/32"], ["0.0.0.0/0"]),
        ]
    with Session("e2b") as session, pytest.raises(ConfigurationError, match="cannot be changed"):
        session.sandbox().set_network(NAMES)
    assert e2b.violations == []


def test_a_server_that_ignores_the_list_gets_no_sandbox() -> None:
    with e2b_emulator("first-version") as server, Session("e2b") as session:
        with pytest.raises(ConfigurationError, match="did not store the list"):
            session.sandbox(network=NAMES).start().result(DEADLINE)
        assert server.alive == []


def test_daytona_gets_its_list(daytona: Server) -> None:
    with Session("daytona") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        assert daytona.networks == [
            ["pypi.org,*.github.com", None],
            [None, "10.1.0.0/16,192.0.2.1/32"],
        ]
        both = Egress(allow=["pypi.org", "10.1.0.0/16"], native=True)
        with pytest.raises(ConfigurationError, match="names or networks, not both"):
            session.sandbox(network=both)
    assert daytona.violations == []


def test_modal_gets_its_list() -> None:
    with modal_emulator() as modal, Session("modal") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        session.sandbox().start().result(DEADLINE)
        assert modal.ask("networks") == [
            [["pypi.org", "*.github.com"], []],
            [[], ["10.1.0.0/16", "192.0.2.1/32"]],
            [[], []],
        ]
