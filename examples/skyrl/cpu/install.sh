#!/usr/bin/env bash
# Makes the environment of ../quickstart_cpu.sh, 7 GB with torch's CUDA build: SkyRL 0.4.0 with the versions of requirements.txt.
#
#   bash examples/skyrl/cpu/install.sh [VENV_DIR]     VENV_DIR is .venv-skyrl in the repository root by default
#
# PYTHON names a Python 3.12 (python3.12 by default). A second run with the same versions does nothing. For
# torch's CPU build, see ../../cpu/install.sh.
set -euo pipefail

name=skyrl/cpu/install.sh
source "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}../../help.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=${1:-$root/.venv-skyrl}
python=${PYTHON:-python3.12}
source "$here/../../cpu/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: bash examples/skyrl/cpu/install.sh [VENV_DIR]"
check_machine 3.12
make_environment "$here"/{requirements.txt,install.sh}
install_pinned 0.30.0+cpu
begin "install this repository"
pip_install --no-deps --no-build-isolation -e "$root"
finish_environment
