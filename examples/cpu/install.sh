#!/usr/bin/env bash
# Makes the virtual environment of the CPU quickstart.
#
#   bash examples/cpu/install.sh [VENV_DIR]     VENV_DIR is .venv in the repository root by default
#
# PYTHON names the interpreter: python3 by default, and 3.10, 3.11 or 3.12. The versions are those of requirements.txt.
# A second run with the same versions does nothing. After an interruption, a run starts again, with packages from pip's
# cache. The script never removes an environment that this clone did not make. The packages need glibc 2.31 or newer
# (Debian 11, Ubuntu 20.04); `ldd --version` prints yours.
#
# PyPI's torch is the CUDA build. It cannot be imported without several GB of NVIDIA's packages, even without a GPU.
# PyTorch's own index has a CPU build, and pip prefers it if PIP_EXTRA_INDEX_URL names that index. The page "Get Started" of
# pytorch.org gives the address.
set -euo pipefail

name=install.sh
source "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}../help.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-$root/.venv}
python=${PYTHON:-python3}
source "$here/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: bash examples/cpu/install.sh [VENV_DIR]"
check_machine 3.10 3.11 3.12
make_environment "$here"/{requirements.txt,install.sh,verl_cpu/pyproject.toml}
install_pinned 0.27.1+cpu
begin "install this repository, and its platform for CPUs"
pip_install --no-deps --no-build-isolation -e "$root" -e "$here/verl_cpu"
begin "import what was installed"
logged "$venv/bin/python" -c 'import torch, transformers, ray, vllm, verl; print("torch", torch.__version__)'
finish_environment
