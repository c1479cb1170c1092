"""Trains with GRPO as a Ray job: the trainer on some nodes of a cluster, vLLM on others.

    ray job submit --working-dir . -- python examples/grpo/launch/ray_job.py config.toml \
        --model Qwen/Qwen2.5-7B-Instruct --trainers 2 --servers 1 --gpus 8 [--set A.B=C]

`ray job stop` has the run write a checkpoint, for which the cluster's nodes must give a job time:
start them with RAY_JOB_STOP_WAIT_TIME_S=600. The same command goes on from it.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence


class Node:
    """One node's GPUs, and a program that has them."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, command: Sequence[str]) -> int:
        """Wait for the process and return its exit status, -n for signal n."""
        self._program = subprocess.Popen(["env", "VLLM_SERVER_DEV_MODE=1", *command])
        return self._program.wait()

    def end(self) -> None:
        if self._program is not None:
            self._program.terminate()


def server(model: str, gpus: int, length: int) -> list[str]:
    """The command of a node that samples."""
    return [
        *("vllm", "serve", model, "--port=8000", f"--tensor-parallel-size={gpus}"),
        *(f"--max-model-len={length}", "--enable-scale-out"),
        *("--logprobs-mode=processed_logprobs", '--weight-transfer-config={"backend": "nccl"}'),
    ]


def trainer(
    rank: int, own: Sequence[str], servers: Sequence[str], given: argparse.Namespace
) -> list[str]:
    """The command of node `rank` of those that train; `own` and `servers` are addresses."""
    urls = ", ".join(f'"http://{each}:8000"' for each in servers)
    settings = [
        *("run.device=cuda", f"model.name={given.model}", "engine.kind=vllm_server"),
        *(f"engine.urls=[{urls}]", f"engine.address={own[rank]}", "engine.transfer=nccl"),
        *(f"engine.max_model_tokens={given.length}", "engine.patience=1800.0", *given.set),
    ]
    return [
        *(sys.executable, "-m", "sandboxkit.integrations.grpo.launch", f"--nnodes={len(own)}"),
        *(f"--node_rank={rank}", f"--nproc_per_node={given.gpus}"),
        *(f"--master_addr={own[0]}", "--master_port=29500"),
        *("-m", "sandboxkit.integrations.grpo", given.config),
        *(f"--set={each}" for each in settings),
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--model", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    for name, default in (("trainers", 2), ("servers", 1), ("gpus", 8), ("length", 8192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(arguments)


def main() -> int:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    given = parse()
    count = given.servers + given.trainers
    ray.init()  # which has a handler of its own for the signal
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    group = ray.util.placement_group([{"CPU": 1, "GPU": given.gpus}] * count, "STRICT_SPREAD")
    ray.get(group.ready())
    make = ray.remote(Node).options
    nodes = [
        make(
            num_cpus=1,
            num_gpus=given.gpus,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        ).remote()
        for bundle in range(count)
    ]
    addresses = ray.get([node.address.remote() for node in nodes])
    servers, trainers = addresses[: given.servers], addresses[given.servers :]
    serving = [
        node.run.remote(server(given.model, given.gpus, given.length))
        for node in nodes[: given.servers]
    ]
    training = [
        node.run.remote(trainer(rank, trainers, servers, given))
        for rank, node in enumerate(nodes[given.servers :])
    ]
    try:
        return int(max(ray.get(training), key=abs))
    finally:
        ray.get([node.end.remote() for node in nodes[given.servers :]])
        ray.wait(training, num_returns=len(training), timeout=600)
        ray.get([node.end.remote() for node in nodes[: given.servers]])
        ray.wait(serving, num_returns=len(serving), timeout=60)


if __name__ == "__main__":
    sys.exit(main())
