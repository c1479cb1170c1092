"""Sandboxes that cost: a session asks for them no sooner than Daytona wants."""

from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._server import Server
from tests.hosted.throttled import JOBS, create_all

CREATE = "POST /api/sandbox"


def test_no_request_comes_before_daytonas_retry_after(server: Server) -> None:
    body = {"statusCode": 429, "message": "ThrottlerException: Too Many Requests"}
    headers = {"Retry-After-sandbox-create": "1"}
    server.fault(CREATE, "status", per_second=2, status=429, body=body, headers=headers)
    watch = create_all(DaytonaProvider())
    assert watch.early == 0
    assert watch.refused > 0
    assert server.requests.count(CREATE) == watch.asked == JOBS + watch.refused
