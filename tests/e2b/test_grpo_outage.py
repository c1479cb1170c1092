"""A vendor that answers nothing but errors for a while, under rollouts that work in sandboxes."""

import json
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from sandboxkit import Session
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.sampling import Sampling, Stop
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.providers.e2b import E2BProvider
from tests.docker_here import require_docker
from tests.e2b.server import emulator
from tests.faults import FaultProxy, HttpAnswer
from tests.grpo.test_rollout import END, TASK, Script, tool_call
from tests.grpo.tiny import chat_tokenizer

AWAY = 8.0
WRITE = tool_call("printf 'def f(x):\\n    return x + 2\\n' > /workspace/s.py")


@pytest.mark.timeout(300)
def test_rollouts_lost_in_an_outage_are_sampled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_docker()
    rows = tmp_path / "rows.jsonl"
    row = {"prompt": [{"role": "user", "content": "ask"}], **TASK}
    rows.write_text((json.dumps(row) + "\n") * 4)
    given = [
        *("model.name=m", f"data.train={rows}", "rollout.prompts_per_step=4"),
        *("rollout.group_size=2", "rollout.max_turns=2", "rollout.artefact=/workspace/s.py"),
        *("buffer.drop_equal=false", "grading.max_concurrency=4"),
    ]
    words = chat_tokenizer()
    with emulator("rooted") as server, FaultProxy(server.url) as proxy:
        urls = {"E2B_API_URL": proxy.url, "E2B_SANDBOX_URL": proxy.url}
        with (
            mock.patch.dict(os.environ, urls),
            Session(E2BProvider(timeout=5.0), max_concurrency=4) as session,
        ):
            engine, stop = Script(words, [WRITE]), Stop()
            subject = Sampling(read(None, given), words, {END}, engine, session, stop, 0)
            healing = threading.Timer(AWAY, proxy.heal)
            proxy.plan = lambda _: HttpAnswer(503)
            healing.start()
            try:
                batch = subject.take(0)
            finally:
                healing.join()
                subject.close()
    outcomes = {each.verdict.outcome for group in batch.finished for each in group.rollouts}
    assert (outcomes, batch.failed) == ({Outcome.PASSED}, 0)
    assert sorted(group.number for group in batch.groups) == [0, 1, 2, 3]
    assert batch.remade >= 4
    assert "had no verdict" in caplog.text
    assert "the backend starts sandboxes again" in caplog.text
