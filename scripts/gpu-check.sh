#!/usr/bin/env bash
# Check the GRPO trainer on this machine's GPU: it learns, continues, computes in bfloat16, trains adapters, samples
# with vLLM and rewards TRL's trainer. Takes less than 8 minutes and needs no network.
#
#     WHEELS=folder scripts/gpu-check.sh [CHECK ...]
#
# WHEELS is a folder with the wheels of sandboxkit-sdk[grpo,trl,local] and what they need, made elsewhere with
# `pip download`; without it the current environment has them already. PYTHON is the interpreter (python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
if [[ -n "${WHEELS:-}" ]]; then
  "$python" -m pip install -q --no-index --find-links "$WHEELS" -e '.[grpo,trl,local]'
fi
exec "$python" scripts/gpu_check.py "$@"
