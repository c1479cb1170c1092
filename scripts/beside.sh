#!/usr/bin/env bash
# Make an environment that sees all of the current one (or of PYTHON's) and has other packages
# besides, which would not do in it: they want other versions, or bring plugins that pytest loads.
#
#     PYTHON=.venv/bin/python scripts/beside.sh .venv/frameworks 'verifiers==0.4.0'
set -euo pipefail

python=${PYTHON:-python}
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
below=$("$python" -c "$packages")
"$python" -m venv --clear --without-pip "$1"
echo "import site; site.addsitedir('$below')" >"$("$1/bin/python" -c "$packages")/below.pth"
"$1/bin/python" -m pip --disable-pip-version-check install -q --no-warn-conflicts "${@:2}"
