"""A server of one's own, which has the first version's route for creations only."""

from sandboxkit import Session
from tests.e2b.server import emulator


def test_a_server_without_the_second_version_creates_all_the_same() -> None:
    with emulator("first-version") as server, Session("e2b") as session:
        for _ in range(2):
            with session.sandbox() as sandbox:
                assert sandbox.exec(["echo", "on"]).result(30).stdout == "on\n"
        created = [
            each
            for each in server.requests
            if each.startswith("POST ") and each.endswith("sandboxes")
        ]
        assert [each.split("/", 1)[1] for each in created] == [
            "v2/sandboxes",
            "sandboxes",
            "sandboxes",
        ]
