#!/usr/bin/env bash
# Make a virtual environment of a newer Python with this package and others. If no such Python is
# installed, print that and exit with 0.
#
#     PYTHON=.venv/bin/python scripts/newer.sh .venv/harbor 3.12 'harbor>=0.24'
set -euo pipefail

python=${PYTHON:-python}
uv="$(dirname "$python")/uv"
folder=$1 version=$2
rm -rf "$folder"
found=$("$python" -m tests.pythons_here "$version")
if [ -z "$found" ]; then
  echo "scripts/newer.sh: no Python $version or newer is installed: ${*:3} cannot be"
  exit 0
fi
"$uv" venv -q -p "$found" "$folder"
# The agent is built already; without build isolation this needs no Go toolchain.
"$uv" pip install -q -p "$folder" 'setuptools>=77'
"$uv" pip install -q -p "$folder" --no-build-isolation -e '.[local,docker,rewards]' "${@:3}"
