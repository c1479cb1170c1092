"""The launchers of examples/ start the trainer on two nodes: here on loopback, with a rank on each."""

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types
from torch.distributed.run import parse_args

from sandboxkit.integrations.grpo.config import read
from tests.grpo import tiny
from tests.grpo.serving import write_model
from tests.grpo.stand_ins import free_port, serving
from tests.grpo.test_program import metrics, no_sandboxes

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAUNCHERS = EXAMPLES / "grpo" / "launch"
STOP = 1

SRUN = """#!/bin/bash
for each; do
  case "$each" in
    --nodes=*) count="${each#*=}" ;; --relative=*) first="${each#*=}" ;; --*) ;; *) break ;;
  esac
  shift
done
IFS=, read -ra nodes <<<"$SLURM_JOB_NODELIST"
trap 'kill $(jobs -p) 2>/dev/null' TERM
for ((rank = 0; rank < count; rank++)); do
  SLURM_PROCID=$rank SLURMD_NODENAME="${nodes[first + rank]}" SLURM_GPUS_ON_NODE=1 "$@" &
done
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit $status
"""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && tr , '\\n' <<<"$3"
"""
VLLM = f"""#!{sys.executable}
import sys
from tests.grpo.stand_in import serve
assert sys.argv[1] == "serve" and "--enable-scale-out" in sys.argv
serve(int(sys.argv[sys.argv.index("--port") + 1]), sys.argv[2], {STOP})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_model(folder)
    return folder


def small(folder: Path, run: Path) -> list[str]:
    """What makes the run of an example one for a machine like this."""
    return tiny.settings(
        folder,
        folder / "train.jsonl",
        run,
        *("run.steps=1", "run.device=cpu", "engine.transfer=gloo", "engine.dtype=float32"),
        *("rollout.prompts_per_step=2", "buffer.drop_equal=false", "model.bf16=false"),
    )


def together(
    commands: Sequence[Sequence[str]], scratch: Path, **variables: str
) -> "list[tuple[int, str]]":
    """Status and output of each, run at the same time."""
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch), **variables},
        )
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(p.wait(), output) for p, output in zip(started, outputs, strict=True)]


def trained(run: Path) -> bool:
    (row,) = metrics(run)
    done = row["rollouts"] == 2 * 8 and row["off_policy"] <= 1e-4
    return done and (run / "export" / "model.safetensors").exists() and no_sandboxes(run)


RANK = """
import os, signal, sys, time
from sandboxkit.integrations.grpo import parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told", flush=True)))
print(os.getpid(), flush=True)
"""
JOINED = """
from sandboxkit.integrations.grpo.ranks import joined
with joined("cpu", 60):
    print("joined", flush=True)
    signal.pause()
"""
LATE = """
print("begun", flush=True)
while os.getppid() == parent._PARENT:
    time.sleep(0.01)
parent.end_with_parent()
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
@pytest.mark.parametrize("then", [JOINED, LATE], ids=["in a run", "before"])
def test_a_rank_is_told_to_end_when_its_launcher_is_killed(then: str) -> None:
    launched = {"TORCHELASTIC_RUN_ID": "any", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    launcher = subprocess.Popen(
        ["sh", "-c", '"$@" & wait', "launcher", sys.executable, "-c", RANK + then],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **launched, **place},
    )
    assert launcher.stdout is not None
    rank = os.pidfd_open(int(launcher.stdout.readline()))
    try:
        assert launcher.stdout.readline() in ("joined\n", "begun\n")
        launcher.kill()
        assert launcher.communicate(timeout=60)[0] == "told\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, signal.SIGKILL)
        os.close(rank)


def test_the_nodes_of_the_kubernetes_example_train_together(folder: Path, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "grpo-nodes.yaml").read_text()))
    of: dict[tuple[str, str], Any] = {
        (each["kind"], each["metadata"]["name"]): each for each in documents
    }
    spec = of["Job", "trainer"]["spec"]
    pod, (container,) = spec["template"]["spec"], spec["template"]["spec"]["containers"]
    master = f"trainer-0.{pod['subdomain']}"
    assert of["Service", pod["subdomain"]]["spec"]["selector"]["app"] == "trainer"
    servers, config = of["StatefulSet", "vllm"], tmp_path / "config.toml"
    config.write_text(of["ConfigMap", "grpo-nodes"]["data"]["config.toml"])
    names = [f"vllm-{number}.vllm" for number in range(servers["spec"]["replicas"])]
    written = read(config)
    assert list(written.engine.urls) == [f"http://{name}:8000" for name in names]
    vllm = servers["spec"]["template"]["spec"]["containers"][0]
    assert vllm["command"][-1] == written.model.name
    assert f"--max-model-len={written.engine.max_model_tokens}" in vllm["args"]

    run = tmp_path / "run-kubernetes"
    with serving(1, folder, STOP) as (server,):
        here = {
            "python": sys.executable,
            "$(POD_IP)": "127.0.0.1",
            master: "127.0.0.1",
            "29500": str(free_port()),
            "/config/config.toml": str(config),
            "--nproc_per_node=8": "--nproc_per_node=1",
        }
        more = [f"--set={each}" for each in small(folder, run)]
        more += [f'--set=engine.urls=["{server.url}"]', "--set=data.held_out="]
        commands = [
            [
                _replaced(part, {**here, "$(JOB_COMPLETION_INDEX)": str(index)})
                for part in container["command"] + container["args"]
            ]
            + more
            for index in range(spec["completions"])
        ]
        done = together(commands, tmp_path)
    assert [status for status, _ in done] == [0, 0], done
    assert trained(run)


def test_the_slurm_job_trains_on_two_nodes_and_ends_its_server(
    folder: Path, tmp_path: Path
) -> None:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("vllm", VLLM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    run, port = tmp_path / "run-slurm", free_port()
    more = [f"--set={each}" for each in small(folder, run)]
    ((status, output),) = together(
        [[str(LAUNCHERS / "slurm.sh"), os.devnull, *more]],
        tmp_path,
        PATH=f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        PYTHONPATH=str(EXAMPLES.parent),
        SLURM_JOB_NODELIST="127.0.0.1,127.0.0.2,127.0.0.3",
        MODEL=str(folder),
        LENGTH="64",
        PORT=str(port),
        MASTER_PORT=str(free_port()),
    )
    assert status == 0, output
    assert trained(run)


def test_what_the_ray_job_starts_is_what_torchrun_and_the_trainer_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))
    job: ModuleType = importlib.import_module("ray_job")
    config = tmp_path / "config.toml"
    config.write_text('data.train = "t"\n[optimizer]\nmax_tokens_per_row = 16384\n')
    given: argparse.Namespace = job.parse([str(config), "--model=m", "--set=run.steps=3"])
    command = job.trainer(1, ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"], given)
    assert command[1:3] == ["-m", "sandboxkit.integrations.grpo.launch"]
    taken = parse_args(command[3:])
    assert (taken.nnodes, taken.node_rank, taken.master_addr) == ("2", 1, "10.0.0.1")
    assert (taken.module, taken.training_script) == (True, "sandboxkit.integrations.grpo")
    path, *settings = taken.training_script_args
    made = read(path, [each.removeprefix("--set=") for each in settings])
    assert made.engine.urls == ("http://10.0.0.3:8000",)
    assert (made.engine.address, made.run.steps) == ("10.0.0.2", 3)
    assert f"--max-model-len={made.engine.max_model_tokens}" in job.server("m", 8, given.length)


def _replaced(text: str, by: Mapping[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text
