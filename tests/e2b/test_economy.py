"""Sandboxes that cost: a session makes no more than it needs, and no sooner than E2B wants."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sandboxkit import Session
from tests.e2b.server import E2BServer

CREATE = "POST /v2/sandboxes"
JOB = 'id -u; ls -A /workspace /tmp; echo "$1" >/workspace/job; touch "/tmp/$1"; sleep 300 & true'


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
