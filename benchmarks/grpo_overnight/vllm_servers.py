"""vLLM's servers, which are started as the tests start theirs."""

import contextlib
import os
import signal
import time
from pathlib import Path

from benchmarks.grpo_overnight.servers import end_with_parent
from tests.grpo import serving, stand_ins

__all__ = ["VLLM"]

_GONE_WITHIN = 60.0


class VLLM:
    """See Served; `python` has vLLM."""

    def __init__(self, python: str, model: Path, scratch: Path) -> None:
        self._python, self._model, self._scratch = python, model, scratch
        self._port = stand_ins.free_port()
        self._log = scratch / f"server-{self._port}.log"
        self._server: serving.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = serving.begin(
            self._model,
            self._scratch,
            self._port,
            python=self._python,
            preexec=end_with_parent,
        )

    def wait(self) -> None:
        assert self._server is not None
        serving.wait_until_it_answers(self._server, self._log)

    def kill(self) -> None:
        """What listens dies at once; the others of it see that, and are killed where they do not."""
        if self._server is None:
            return
        process, self._server = self._server.process, None
        process.kill()
        process.wait(_GONE_WITHIN)
        deadline = time.monotonic() + _GONE_WITHIN
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGKILL)
