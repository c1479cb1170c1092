"""A step of GRPO on 8 to 512 GPUs, computed: what rank 0 does is measured here, GPUs are as on paper.

    python -m benchmarks.grpo_scale [--parameters 7.6e9] [--rollouts-per-gpu 16] [--tokens 2048]

Half of the GPUs train and each of the others is a vLLM server; weights go out before the next step
(`buffer.lag = 0`). Says which part bounds the step at each size. Needs the training group.
"""

import argparse
import asyncio
import json
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sandboxkit import Operation
from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.rollout_record import RolloutRecord, Turn
from sandboxkit.integrations.grpo.engines.replicas import Replicas
from sandboxkit.integrations.grpo.engines.vllm_calls import GENERATE, completion
from sandboxkit.integrations.rewards import Outcome, Verdict

SIZES = (8, 16, 32, 64, 128, 256, 512)
_REQUESTS, _AT_ONCE = 128, 32
_SERVER = """
import asyncio, sys
async def answer(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    await reader.readexactly(size)
    writer.write(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n")
    writer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
body = sys.stdin.readline().encode()
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Host:
    """Processor seconds that rank 0 spends on one rollout, measured."""

    request: float
    """Requesting its completion from a server, and reading it."""
    record: float
    """Writing the record and sending it to the other ranks."""


@dataclass(frozen=True, slots=True)
class Job:
    """The sizes and costs that make up a step."""

    parameters: float
    rollouts_per_gpu: int
    tokens: int
    """The number of tokens of each completion."""
    sandbox_seconds: float = 1.0
    """Seconds of one sandbox for a rollout."""
    sandboxes_per_gpu: int = 8
    sent: float = 2.0
    """Bytes a parameter that go to each server; of adapters as many as they have to those of all."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An H100 with its share of a network of 400 Gbit/s a machine, from data sheets: not measured."""

    flops: float = 990e12 * 0.35
    memory: float = 3.35e12 * 0.6
    """Bytes a second while tokens are sampled."""
    link: float = 50e9 * 0.7
    """Bytes a second out of one machine."""
    cache: float = 57e3
    """Bytes of keys and values for a token, of 7B."""


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of each part, in sequence."""

    sampling: float
    rank0: float
    """What is left of requests once the GPUs have sampled, and the records."""
    sandboxes: float
    """What is left of grading once all is sampled."""
    training: float
    weights: float

    @property
    def seconds(self) -> float:
        return float(sum(asdict(self).values()))

    @property
    def bound(self) -> str:
        """The longest part."""
        parts = asdict(self)
        return max(parts, key=lambda name: float(parts[name]))


def simulate(gpus: int, job: Job, host: Host, gpu: Gpu) -> Step:
    """One step."""
    servers, trainers = gpus // 2, gpus - gpus // 2
    rollouts = job.rollouts_per_gpu * gpus
    batch, model = rollouts / servers, 2 * job.parameters
    moved = (model + batch * gpu.cache * job.tokens / 2) / gpu.memory
    sampling = job.tokens * max(moved, batch * model / gpu.flops)
    asked = rollouts * host.request
    graded = rollouts * job.sandbox_seconds / (gpus * job.sandboxes_per_gpu)
    gathered = job.sent * job.parameters / gpu.link
    return Step(
        sampling=sampling,
        rank0=max(0.0, asked - sampling) + rollouts * host.record,
        sandboxes=job.sandbox_seconds + max(0.0, graded - sampling),
        # Forward, backward, and forward again for activation checkpointing.
        training=8 * job.parameters * rollouts * job.tokens / (trainers * gpu.flops),
        # Rank 0 sends to each server on its own, all through one link.
        weights=gathered + servers * job.sent * job.parameters / gpu.link,
    )


def measured(tokens: int) -> Host:
    """Rank 0's costs on this machine, with the code that does it."""
    content = [{"token_id": number % 1000, "logprob": -0.123456} for number in range(tokens)]
    span = {"version": "3", "start": 0, "end": tokens}
    choice = {
        "token_ids": [each["token_id"] for each in content],
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "weight_versions": [span],
    }
    body = json.dumps({"choices": [choice]})
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(body + "\n")
        server.stdin.flush()
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        replicas, room = Replicas(60.0), asyncio.Semaphore(_AT_ONCE)

        async def ask() -> None:
            async with room:
                answer = await replicas.post(url, GENERATE, {"token_ids": [1] * 200})
                completion(answer, url)

        async def all_of_them() -> None:
            await asyncio.gather(*[ask() for _ in range(_REQUESTS)])

        try:
            begun = time.process_time()
            Operation(all_of_them()).result()
            request = (time.process_time() - begun) / _REQUESTS
        finally:
            replicas.close()
            server.stdin.close()
    kept = RolloutRecord(
        group=0,
        member=0,
        verdict=Verdict(Outcome.PASSED, 1.0),
        reward=1.0,
        tokens={"prompt": 200, "policy": tokens},
        seconds={},
        prompt="word " * 200,
        turns=[Turn("assistant", "".join(f"x{number} = " for number in range(tokens)), tokens)],
    )
    with tempfile.TemporaryDirectory(prefix="sandboxkit-benchmark-") as name:
        begun = time.process_time()
        records.write(Path(name), 1, (kept.json() for _ in range(_REQUESTS)))
        sample = [(tuple(range(tokens)), (True,) * tokens, (-0.1,) * tokens)] * _REQUESTS
        for each in sample:
            pickle.loads(pickle.dumps(each))
        record = (time.process_time() - begun) / _REQUESTS
    return Host(request, record)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=float, default=7.6e9)
    parser.add_argument("--rollouts-per-gpu", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args()
    job, host = Job(args.parameters, args.rollouts_per_gpu, args.tokens), measured(args.tokens)
    print(f"measured: {host.request * 1e3:.1f} ms a request, {host.record * 1e3:.1f} ms a record")
    for what, each in (("merged weights", job), ("adapters alone", replace(job, sent=0.02))):
        print(
            f"\n| {what}, GPUs | step | sampling | rank 0 | sandboxes | training | weights | bound |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for gpus in SIZES:
            step = simulate(gpus, each, host, Gpu())
            parts = " | ".join(f"{seconds:.1f}" for seconds in asdict(step).values())
            print(f"| {gpus} | {step.seconds:.1f} s | {parts} | {step.bound} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
