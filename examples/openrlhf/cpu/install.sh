#!/usr/bin/env bash
# Makes the environment of ../quickstart_cpu.sh, 4 GB: OpenRLHF 0.11.2 with the versions of requirements.txt.
#
#   bash examples/openrlhf/cpu/install.sh [VENV_DIR]     VENV_DIR is .venv-openrlhf in the repository root by default
#
# PYTHON names a Python 3.11 (python3.11 by default), the only version for which OpenRLHF has a wheel. A second run with
# the same versions does nothing. For torch's CPU build, see ../../cpu/install.sh.
set -euo pipefail

name=openrlhf/cpu/install.sh
source "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}../../help.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=${1:-$root/.venv-openrlhf}
python=${PYTHON:-python3.11}
source "$here/../../cpu/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: bash examples/openrlhf/cpu/install.sh [VENV_DIR]"
check_machine 3.11
make_environment "$here"/{requirements.txt,install.sh}
install_pinned 0.29.0+cpu
begin "install DeepSpeed"
# In an isolation of its own, where it finds no torch and builds nothing for a GPU.
DS_BUILD_OPS=0 pip_install --no-deps --use-pep517 deepspeed==0.19.6
begin "install this repository"
pip_install --no-deps --no-build-isolation -e "$root"
begin "compile what DeepSpeed else compiles in the first run" # killed meanwhile, that leaves a lock for all later ones
PATH=$venv/bin:$PATH PYTHONPATH=$here logged "$venv/bin/python" -c "
from deepspeed.ops.op_builder.cpu import FusedAdamBuilder, ShareMemCommBuilder
ShareMemCommBuilder().load(verbose=False)
FusedAdamBuilder().load(verbose=False)"
finish_environment
