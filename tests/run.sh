#!/usr/bin/env bash
# Installs what the tests need and runs every one of them: lint, types, unit tests, and the end-to-end runs of main_ppo.
#
#   bash tests/run.sh [pytest arguments]      for example: bash tests/run.sh -m "not e2e" -k weights
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-$PWD/.venv}
bash examples/cpu/install.sh "$venv"
export PATH=$venv/bin:$PATH

ruff check .
ruff format --check .
mypy
# Two processes, one file's tests in one of them, files by name: the longest, test_e2e.py, starts early.
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
