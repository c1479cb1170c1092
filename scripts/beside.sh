#!/usr/bin/env bash
# Make a virtual environment that sees all packages of the current one (or of PYTHON's) and adds more.
# These do not fit into the current one: they need other versions, or bring plugins that pytest loads.
#
#     PYTHON=.venv/bin/python scripts/beside.sh .venv/frameworks 'verifiers==0.4.0'
set -euo pipefail

python=${PYTHON:-python}
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
below=$("$python" -c "$packages")
"$python" -m venv --clear --without-pip "$1"
echo "import site; site.addsitedir('$below')" >"$("$1/bin/python" -c "$packages")/below.pth"
"$1/bin/python" -m pip --disable-pip-version-check install -q --no-warn-conflicts "${@:2}"
