"""`Egress(native=True)`: the vendors' own lists of allowed servers, as their SDKs send them."""

import re
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Credential, Egress, Session
from tests.daytona.server import emulator as daytona_emulator
from tests.e2b.server import emulator as e2b_emulator
from tests.egress.conftest import CASES, DEADLINE
from tests.modal.server import emulator as modal_emulator

NAMES = Egress(allow=["PyPI.org", "*.github.com"], native=True)
SECRET = Credential("a.test", {"A": "secret"})
NETWORKS = Egress(allow=["10.1.0.0/16", "192.0.2.1"], native=True)


ALLOWED = {"allow": ["pypi.org"]}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *[({"allow": [each]}, re.escape(repr(each))) for each in CASES["not_native"]],
        ({"allow": []}, "allows nothing"),
        ({**ALLOWED, "private": ["10.0.0.0/8"]}, r"Egress\(private=\.\.\.\)"),
        ({**ALLOWED, "hosts": {"a": "10.0.0.1"}}, r"Egress\(hosts=\.\.\.\)"),
        ({**ALLOWED, "log": print}, r"Egress\(log=\.\.\.\)"),
        ({**ALLOWED, "max_bytes": 1}, r"Egress\(max_bytes=\.\.\.\)"),
        ({**ALLOWED, "credentials": [SECRET]}, r"Egress\(credentials=\.\.\.\)"),
    ],
    ids=str,
)
def test_what_no_vendor_can_do_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        Egress(native=True, **options)
    assert "secret" not in str(caught.value)


def test_a_provider_without_a_list_of_its_own_refuses_it() -> None:
    refused = pytest.raises(ConfigurationError, match=r"'local' cannot honour Egress\(native")
    with Session("local") as session, refused:
        session.sandbox(network=NAMES)


def environment(session: Session, network: Egress) -> str:
    """Start a sandbox, and return the variables of a command in it."""
    sandbox = session.sandbox(network=network)
    variables = sandbox.exec(["env"]).result(DEADLINE).stdout
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        sandbox.set_network("none")
    return variables


def test_e2b_gets_its_list() -> None:
    with e2b_emulator() as server, Session("e2b") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        assert [(each["allowOut"], each["denyOut"]) for each in server.state["networks"]] == [
            (["pypi.org", "*.github.com"], ["0.0.0.0/0"]),
            (["10.1.0.0/16", "192.0.2.1/32"], ["0.0.0.0/0"]),
        ]
        with pytest.raises(ConfigurationError, match="cannot be changed"):
            session.sandbox().set_network(NAMES)
        assert server.violations == []


def test_a_server_that_ignores_the_list_gets_no_sandbox() -> None:
    with e2b_emulator("first-version") as server, Session("e2b") as session:
        with pytest.raises(ConfigurationError, match="did not store the list"):
            session.sandbox(network=NAMES).start().result(DEADLINE)
        assert server.alive == []


def test_daytona_gets_its_list() -> None:
    with daytona_emulator() as server, Session("daytona") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        names, networks = ["pypi.org,*.github.com", None], [None, "10.1.0.0/16,192.0.2.1/32"]
        assert server.state["networks"] == [names, networks]
        both = Egress(allow=["pypi.org", "10.1.0.0/16"], native=True)
        with pytest.raises(ConfigurationError, match="names or networks, not both"):
            session.sandbox(network=both)
        assert server.violations == []


def test_modal_gets_its_list() -> None:
    with modal_emulator() as modal, Session("modal") as session:
        assert "http_proxy" not in environment(session, NAMES)
        environment(session, NETWORKS)
        session.sandbox().start().result(DEADLINE)
        names, networks = ["pypi.org", "*.github.com"], ["10.1.0.0/16", "192.0.2.1/32"]
        assert modal.state["networks"] == [[names, []], [[], networks], [[], []]]
