"""The simulation of a step: its arithmetic, and what it measures."""

from benchmarks.grpo_scale import Gpu, Host, Job, Step, measured, simulate


def test_a_step_is_computed_as_by_hand() -> None:
    job = Job(1e9, rollouts_per_gpu=2, tokens=10, sandbox_seconds=1.0, sandboxes_per_gpu=1)
    gpu = Gpu(flops=1e12, memory=1e9, link=1e9, cache=0.0)
    # 4 servers with 4 of 16 rollouts each read 2 GB a token; each gets 2 GB, once all is gathered.
    assert simulate(8, job, Host(0.5, 0.1), gpu) == Step(20.0, 1.6, 1.0, 0.32, 10.0)
    # Requests of 32 s and sandboxes that are busy for 40 s outlast the sampling.
    slow = Job(1e9, rollouts_per_gpu=2, tokens=10, sandbox_seconds=20.0, sandboxes_per_gpu=1)
    step = simulate(8, slow, Host(2.0, 0.0), gpu)
    assert (step.rank0, step.sandboxes) == (12.0, 40.0)
    assert step.bound == "sandboxes"


def test_what_rank_0_spends_is_measured() -> None:
    host = measured(16)
    assert host.request > 0
    assert host.record > 0
