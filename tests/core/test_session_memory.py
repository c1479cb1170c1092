"""A session keeps nothing of sandboxes that are gone."""

import gc
import time
import weakref

from sandboxkit import Session
from sandboxkit.testing import FakeProvider


def test_a_session_forgets_sandboxes_that_were_stopped() -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result()
        sandbox.stop().result()
        gone = weakref.ref(sandbox)
        del sandbox
        deadline = time.monotonic() + 60
        while gone() is not None:  # the loop's thread lets go of what has ended
            assert time.monotonic() < deadline
            gc.collect()


def test_uncounted_sandboxes_may_exceed_the_limit() -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        session.sandbox().start().result(timeout=60)
        serving = session.sandbox(counted=False).start().result(timeout=60)
        assert len(session.list().result()) == 2
        serving.stop().result()
