"""Sandboxes that cost: a session makes no more than it needs, and no sooner than E2B wants."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandboxkit import Session
from sandboxkit.providers.e2b import E2BProvider
from tests.docker_here import require_docker
from tests.e2b.server import E2BServer, emulator
from tests.hosted.throttled import JOBS, create_all

CREATE = "POST /v2/sandboxes"
LIMITED = {"code": 429, "message": "Rate limit exceeded"}
JOB = 'id -u; ls -A /workspace /tmp; echo "$1" >/workspace/job; touch "/tmp/$1"; sleep 300 & true'


@pytest.fixture(scope="module")
def rooted() -> Iterator[E2BServer]:
    require_docker()
    with emulator("rooted") as server:
        yield server


def test_fifty_jobs_with_ten_sandboxes_make_ten(rooted: E2BServer) -> None:
    rooted.clear()
    with Session("e2b", pool=10, max_concurrency=10, profile="strict", reuse="reset") as session:

        def job(number: int) -> str:
            with session.sandbox() as sandbox:
                return sandbox.exec(["sh", "-c", JOB, "sh", str(number)]).result(120).stdout

        with ThreadPoolExecutor(10) as threads:
            output = [text.split("\n", 1) for text in threads.map(job, range(50))]
        assert Counter(rest for _, rest in output) == {"/tmp:\n\n/workspace:\n": 50}
        assert len({uid for uid, _ in output}) == 50
        assert rooted.requests.count(CREATE) == 10


def test_no_request_comes_before_e2bs_retry_after(server: E2BServer) -> None:
    headers = {"retry-after": "1"}
    server.fault(CREATE, "status", per_second=2, status=429, body=LIMITED, headers=headers)
    watch = create_all(E2BProvider())
    assert watch.early == 0
    assert watch.refused > 0
    assert server.requests.count(CREATE) == watch.asked == JOBS + watch.refused
