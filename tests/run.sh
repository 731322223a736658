#!/usr/bin/env bash
# Installs what the tests need and runs them: lint, types, unit tests, and end-to-end runs of main_ppo. The slowest of
# these are left out; -m slow runs them.
#
#   bash tests/run.sh [pytest arguments]      for example: bash tests/run.sh -k weights
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-$PWD/.venv}
# Most modules are never imported, and Python compiles those that are. So install.sh need not compile all of them.
export PIP_NO_COMPILE=1
# Many images of containers set this. Then no process would keep what it has compiled, and each would compile all again.
unset PYTHONDONTWRITEBYTECODE
bash examples/cpu/install.sh "$venv"
export PATH=$venv/bin:$PATH

command -v chromedriver >/dev/null ||
    echo "no Chromium, so the pages are not tested in a browser (on Debian: apt install chromium chromium-driver)" >&2
bash tests/lint.sh
# There are two processes. All tests of a file run in the same one, and conftest.py starts the longest files first. Each
# process has one thread, because several threads that wait for each other would spin if there are too few cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
