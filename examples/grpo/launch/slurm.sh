#!/bin/bash
# Trains with GRPO as a Slurm job: vLLM on the first SERVERS of its nodes, the trainer on the others.
#
#   MODEL=Qwen/Qwen2.5-7B-Instruct SERVERS=1 sbatch examples/grpo/launch/slurm.sh config.toml [--set A.B=C]
#
# Ten minutes before its time is over, and after `scancel --signal=TERM JOB`, the run writes a checkpoint
# and ends; the same command goes on from it. Who reaches a server's port may replace its weights.
#SBATCH --job-name=grpo
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@600
set -euo pipefail

export MODEL="${MODEL:-Qwen/Qwen2.5-7B-Instruct}" LENGTH="${LENGTH:-8192}"
export PORT="${PORT:-8000}" MASTER_PORT="${MASTER_PORT:-29500}" VLLM_SERVER_DEV_MODE=1
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
SERVERS="${SERVERS:-1}"
export FIRST="${nodes[SERVERS]}" TRAINERS="$((${#nodes[@]} - SERVERS))"
urls="$(printf "\"http://%s:$PORT\"," "${nodes[@]:0:SERVERS}")"

# What is in single quotes is each node's to expand.
srun --nodes="$SERVERS" --ntasks="$SERVERS" --relative=0 bash -c 'exec vllm serve "$MODEL" \
  --port "$PORT" --tensor-parallel-size "$SLURM_GPUS_ON_NODE" --max-model-len "$LENGTH" \
  --enable-scale-out --logprobs-mode processed_logprobs \
  --weight-transfer-config "{\"backend\": \"nccl\"}"' &
serving=$!
trap 'kill "$serving" 2>/dev/null; wait' EXIT

srun --nodes="$TRAINERS" --ntasks="$TRAINERS" --relative="$SERVERS" --wait=600 bash -c '
  exec python -m sandboxkit.integrations.grpo.launch \
  --nnodes="$TRAINERS" --node_rank="$SLURM_PROCID" --nproc_per_node="$SLURM_GPUS_ON_NODE" \
  --master_addr="$FIRST" --master_port="$MASTER_PORT" -m sandboxkit.integrations.grpo "$@" \
  --set=engine.address="$SLURMD_NODENAME"' \
  trainer "$1" --set=run.device=cuda --set=model.name="$MODEL" --set=engine.kind=vllm_server \
  --set=engine.urls="[$urls]" --set=engine.max_model_tokens="$LENGTH" \
  --set=engine.transfer=nccl --set=engine.patience=1800.0 "${@:2}"
