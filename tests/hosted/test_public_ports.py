"""The vendors' public addresses of ports: who can reach them, and what each needs for that."""

import pytest

from sandboxkit import ConfigurationError, Egress, Sandbox, Session
from sandboxkit.types import PublicUrl
from tests.daytona.server import emulator as daytona_emulator
from tests.e2b.server import emulator as e2b_emulator
from tests.modal.server import emulator as modal_emulator

DEADLINE = 60
UNKNOWN = "only the process that made it"


def test_e2b_protects_declared_ports_by_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with e2b_emulator() as server, Session("e2b") as session:
        sandbox = session.sandbox(public_ports=[8000], network="none")
        found = sandbox.public_url(8000).result(DEADLINE)
        assert sandbox.id is not None
        token = {"e2b-traffic-access-token": f"t-{sandbox.id}"}
        address = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": "8000"}
        assert found == PublicUrl(server.url, "token", address | token)
        monkeypatch.delenv("E2B_SANDBOX_URL")
        monkeypatch.setenv("E2B_DOMAIN", "e2b.app")
        found = sandbox.public_url(8000).result(DEADLINE)
        assert (found.url, found.headers) == (f"https://8000-{sandbox.id}.e2b.app", token)
        assert server.state["networks"][0]["allowPublicTraffic"] is False
        other = Sandbox.from_id(sandbox.id, provider="e2b").result(DEADLINE)
        with pytest.raises(ConfigurationError, match=UNKNOWN):
            other.public_url(8000).result(DEADLINE)
        assert server.violations == []


def test_a_server_of_ones_own_without_tokens_is_open_to_anyone() -> None:
    with e2b_emulator("first-version"), Session("e2b") as session:
        found = session.sandbox(public_ports=[8000]).public_url(8000).result(DEADLINE)
        assert found.access == "anyone"
        assert "e2b-traffic-access-token" not in found.headers


def test_a_preview_at_daytona_needs_its_token() -> None:
    with daytona_emulator() as server, Session("daytona") as session:
        sandbox = session.sandbox(public_ports=[8000, 9000])
        found = sandbox.public_url(9000).result(DEADLINE)
        url = f"https://9000-{sandbox.id}.proxy.daytona.test"
        assert found == PublicUrl(url, "token", {"X-Daytona-Preview-Token": f"t-{sandbox.id}"})
        assert server.violations == []


def test_a_tunnel_of_modal_is_open_to_anyone_and_needs_a_network() -> None:
    with modal_emulator(), Session("modal") as session:
        with pytest.raises(ConfigurationError, match="opens no port"):
            session.sandbox(public_ports=[8000])
        for network in ("internet", Egress(allow=["pypi.org"], native=True)):
            sandbox = session.sandbox(public_ports=[8000], network=network)
            found = sandbox.public_url(8000).result(DEADLINE)
            assert found == PublicUrl("https://p8000.modal.test", "anyone")
        assert sandbox.id is not None
        other = Sandbox.from_id(sandbox.id, provider="modal").result(DEADLINE)
        with pytest.raises(ConfigurationError, match=r"public_ports=\[8001\]"):
            other.public_url(8001).result(DEADLINE)


@pytest.mark.parametrize("ports", [[0], [70000], ["80"], "80", [True]])
def test_what_is_no_port_is_refused(ports: object) -> None:
    with Session("local") as session, pytest.raises(ConfigurationError, match="public_ports"):
        session.sandbox(public_ports=ports)  # type: ignore[arg-type]  # wrong on purpose


def test_a_provider_without_public_addresses_refuses_them() -> None:
    with Session("local") as session:
        with pytest.raises(ConfigurationError, match="public_ports: it has no"):
            session.sandbox(public_ports=[8000])
        with pytest.raises(ConfigurationError, match="not public"):
            session.sandbox().public_url(8000)
