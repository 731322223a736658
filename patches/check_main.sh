#!/usr/bin/env bash
# Applies the parts one by one to a checkout of verl, and runs after each what verl's CI would run: format, types, its own
# checks, and the tests of the part; at the end verl's CPU tests of the trainer, and every estimator against the checkout's.
# The checkout itself is left as it is. A part that no longer applies is named, and ends the script.
#
#   bash patches/check_main.sh CHECKOUT      a git checkout of verl; its HEAD is what the parts are applied to
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
echo "verl at $(git rev-parse HEAD)"

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

# The checks of verl's own that its pre-commit runs, with what each one calls itself.
own_checks() {
    python3 -c '
import yaml
for repository in yaml.safe_load(open(".pre-commit-config.yaml"))["repos"]:
    if repository["repo"] == "local":
        for hook in repository["hooks"]:
            print(hook["name"], hook["entry"], sep="\t")
'
}

tests=(python3 -m pytest -q -p no:cacheprovider -W ignore -o python_files='*_on_cpu.py')
check "every estimator, before" python3 "$patches/compare.py" record "$scratch/base.pt"
for part in "$patches"/*.patch; do
    name=$(basename "$part" .patch)
    echo
    # Without --keep-non-patch, git drops the modules in brackets that a title of verl begins with.
    check "apply $name" git -c user.name=check -c user.email=check@example.org am --keep-non-patch "$part"
    mapfile -t changed < <(git diff --name-only --diff-filter=d HEAD~1 -- '*.py')
    check "$(ruff --version): check" ruff check --extend-exclude '*.ipynb' .
    check "$(ruff --version): format" ruff format --check .
    check "$(mypy --version)" mypy "${changed[@]}"
    while IFS=$'\t' read -r own entry; do
        check "$own" bash -c "$entry"
    done < <(own_checks)
    check "nothing was reformatted or generated anew" git diff --exit-code
    check "tests that the part brings or changes" "${tests[@]}" $(git diff --name-only HEAD~1 -- 'tests/**/test_*.py')
    check "every estimator, after" python3 "$patches/compare.py" record "$scratch/$name.pt"
    python3 "$patches/compare.py" table "$scratch/base.pt" "$scratch/$name.pt"
done
echo
# Without the two that start Ray, about the replay buffer: they wait forever where there are too few cores.
check "verl's CPU tests of the trainer" "${tests[@]}" tests/trainer --ignore-glob='*/v1/test_re*_on_cpu.py'
