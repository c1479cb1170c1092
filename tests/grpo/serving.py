"""A real `vllm serve` on loopback, and a small model with its data for it."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from toys import compose

from tests.components import reason
from tests.grpo import stand_ins, tiny

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None and not os.environ.get("SANDBOXKIT_REQUIRE_VLLM"),
    reason=reason("vLLM", "make test-vllm"),
)
START_WITHIN = 300.0


@dataclass
class Server:
    url: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """Ask it to end, then what is left of its processes, and make sure of them."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        deadline = time.monotonic() + 20
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, 0)
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def write_model(folder: Path) -> None:
    """One that writes programs of the right form, and the toy's rows for it."""
    compose.warm_model(0.5, steps=60).save_pretrained(folder)
    compose.tokenizer().save_pretrained(folder)
    programs, _ = compose.splits()
    rows = [json.dumps(compose.row(program)) for program in programs[:12]]
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")


@contextlib.contextmanager
def serve(folder: Path, scratch: Path) -> Iterator[Server]:
    """The server, once it answers; it writes nowhere but in `scratch`."""
    port = stand_ins.free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "64", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "64M"),
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
        *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
    ]
    environment = {
        **os.environ,
        **{f"VLLM_{name}_ROOT": str(scratch / name) for name in ("CACHE", "CONFIG")},
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(scratch),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    log = scratch / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", folder, process)
    try:
        _wait_until_it_answers(server, log)
        yield server
    finally:
        server.stop()


def _wait_until_it_answers(server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        assert server.process.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)


def settings(folder: Path, run: Path, *more: str) -> list[str]:
    few = [f"model.name={folder}", "run.timeout=120", "rollout.prompts_per_step=4"]
    return tiny.settings(folder, run, *few, *more)
