#!/usr/bin/env bash
# Applies the patches to verl's main and runs there what its CI would: format checks, the tests that the patches bring, and
# verl's own CPU tests of the trainer. The checkout itself is left as it is.
#
#   bash patches/check_main.sh CHECKOUT      a git checkout of verl; its HEAD is what the patches are applied to
#
# Needs a Python environment with verl's dependencies, pytest, ruff and mypy on PATH. verl's pre-commit pins ruff 0.12.2
# and mypy 1.17.0; other versions may judge otherwise.
set -euo pipefail

checkout=$(cd "${1:?usage: bash patches/check_main.sh CHECKOUT}" && pwd)
patches=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'git -C "$checkout" worktree remove --force "$scratch/verl"; rm -rf "$scratch"' EXIT

git -C "$checkout" worktree add -q --detach "$scratch/verl"
cd "$scratch/verl"
export PYTHONPATH=$PWD VERL_USE_EXTERNAL_PLUGINS=none
base=$(git rev-parse HEAD)
echo "verl at $base"

check() {
    printf '%-75s' "$1"
    shift
    if "$@" >"$scratch/log" 2>&1; then
        # The last line of pytest and mypy says how many.
        echo "ok   $(tail -n 1 "$scratch/log" | grep -E 'passed|no issues' || true)"
    else
        echo FAILED
        tail -n 40 "$scratch/log"
        exit 1
    fi
}

for part in "$patches"/*.patch; do
    check "apply ${part##*/}" git -c user.name=check -c user.email=check@example.org am "$part"
done
mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- '*.py')
check "$(ruff --version): check" ruff check --extend-exclude '*.ipynb' .
check "$(ruff --version): format" ruff format --check .
check "$(mypy --version)" mypy "${changed[@]}"

# The checks of verl's own that its pre-commit runs, with what each one calls itself.
while IFS=$'\t' read -r name entry; do
    check "$name" bash -c "$entry"
done < <(python3 -c '
import yaml
for repository in yaml.safe_load(open(".pre-commit-config.yaml"))["repos"]:
    if repository["repo"] == "local":
        for hook in repository["hooks"]:
            print(hook["name"], hook["entry"], sep="\t")
')
check "nothing was reformatted or generated anew" git diff --exit-code

tests=(python3 -m pytest -q -p no:cacheprovider -W ignore -o python_files='*_on_cpu.py')
check "tests that the patches bring or change" "${tests[@]}" $(git diff --name-only "$base" -- 'tests/**/test_*.py')
# Without the two that start Ray, about the replay buffer: they wait forever where there are too few cores.
check "verl's CPU tests of the trainer" "${tests[@]}" tests/trainer --ignore-glob='*/v1/test_re*_on_cpu.py'
