"""Modal for the tests: its emulator, its words and limits."""

from collections.abc import Mapping
from typing import Any

from sandboxkit.providers._hosted.vendor import VendorProvider
from sandboxkit.providers.modal import ModalProvider
from tests.emulators._answers import Row
from tests.emulators._server import Server
from tests.hosted.vendor import Answer, Vendor


class Modal(Vendor):
    """Modal, whose SDK repeats calls and keeps its own connections."""

    name = "modal"
    timeout = 2.5

    def environment(self, server: Server) -> Mapping[str, str]:
        keys = {"MODAL_TOKEN_ID": "ak-emulator", "MODAL_TOKEN_SECRET": "as-emulator"}
        return {"MODAL_SERVER_URL": server.url, **keys}

    def provider(self, timeout: float | None = None, **options: Any) -> VendorProvider[Any, Any]:
        seconds = timeout or self.timeout
        return ModalProvider(timeout=seconds, build_timeout=seconds, **options)

    def row(self, answer: Answer) -> Row:
        policy = ""
        if answer.retry_after is not None:
            policy = f" with a retry policy of {answer.retry_after:g} s"
        text = f"{answer.status}{policy}: `{answer.body}`"
        return Row(tuple(answer.calls), text, answer.raised, answer.retry_after)

    def refuse(self, server: Server, call: str, answer: Answer, times: int) -> None:
        rule: dict[str, Any] = {"status": answer.status, "message": answer.body}
        if answer.retry_after is not None:
            rule["retry_after"] = answer.retry_after
        kind = "http" if isinstance(answer.status, int) else "status"
        server.fault(self.requests[call], kind, **rule)

    def fill(self, server: Server, sandboxes: int) -> None:
        rule = {"status": "RESOURCE_EXHAUSTED", "message": f"limit of {sandboxes} sandboxes"}
        server.fault("SandboxCreateV2", "status", skip=sandboxes, times=1, **rule)


emulator = Modal().running
