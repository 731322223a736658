#!/usr/bin/env bash
# Checks the parts on a checkout of verl: each one alone, that is with nothing but the parts that it needs, and then all of
# them together. After each part it runs what verl's CI would run: format, types, verl's own checks, and the part's tests. It
# also compares the advantages of every estimator with the checkout's. With all parts, verl's CPU tests of the trainer run,
# too. A part that fails is named, and the next one is checked all the same. The checkout itself is left as it is.
#
#   bash patches/check_main.sh CHECKOUT      a git checkout of verl; its HEAD is what the parts are applied to
#
# Needs a Python environment with verl's dependencies, pytest, ruff and mypy on PATH. verl's pre-commit pins ruff 0.12.2
# and mypy 1.17.0; other versions may judge otherwise.
set -euo pipefail

# verl's CI runs all tests in one process, so that a test that gets one of verl's estimators by name after those of the
# registry needs these mended, by 0001.
declare -A needs=(
    [0001-registry-test]=""
    [0002-otb-on-v1]="0001-registry-test"
    [0003-gdpo-on-v1]="0001-registry-test"
    [0004-named-tensors]="0001-registry-test 0002-otb-on-v1"
    [0005-estimator-metrics]=""
    [0006-cw-grpo-estimator]="0001-registry-test 0002-otb-on-v1 0004-named-tensors 0005-estimator-metrics"
)

checkout=$(cd "${1:?usage: bash patches/check_main.sh CHECKOUT}" && pwd)
patches=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'git -C "$checkout" worktree remove --force "$scratch/verl"; rm -rf "$scratch"' EXIT

git -C "$checkout" worktree add -q --detach "$scratch/verl"
cd "$scratch/verl"
base=$(git rev-parse HEAD)
export PYTHONPATH=$PWD VERL_USE_EXTERNAL_PLUGINS=none

# Runs a command and says how it went. What it printed is shown only if it failed.
check() {
    printf '    %-60s' "$1"
    shift
    if "$@" >"$scratch/log" 2>&1; then
        # The last line of pytest and mypy says how many.
        echo "ok   $(tail -n 1 "$scratch/log" | grep -E 'passed|no issues' || true)"
    else
        echo FAILED
        tail -n 40 "$scratch/log"
        return 1
    fi
}

apply() {
    local part
    for part in "$@"; do
        # Without --keep-non-patch, git drops the modules in brackets that a title of verl begins with.
        git -c user.name=check -c user.email=check@example.org am -q --keep-non-patch "$patches/$part.patch" || {
            git am --abort
            echo "$part no longer applies"
            return 1
        }
    done
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

run_own_checks() {
    local name entry
    while IFS=$'\t' read -r name entry; do
        echo "$name"
        bash -c "$entry" </dev/null || return 1
    done < <(own_checks)
}

compare_estimators() {
    python3 "$patches/compare.py" record "$scratch/$1.pt" &&
        python3 "$patches/compare.py" table "$scratch/base.pt" "$scratch/$1.pt"
}

run_tests() {
    python3 -m pytest -q -p no:cacheprovider -W ignore -o python_files='*_on_cpu.py' "$@"
}

# What is checked of the commits since $2; $1 is their name.
check_commits() {
    local changed
    mapfile -t changed < <(git diff --name-only --diff-filter=d "$2" -- '*.py')
    check "$(ruff --version): check" ruff check --extend-exclude '*.ipynb' . &&
        check "$(ruff --version): format" ruff format --check . &&
        check "$(mypy --version)" mypy "${changed[@]}" &&
        check "verl's own checks" run_own_checks &&
        check "nothing was reformatted or generated anew" git diff --exit-code &&
        check "every estimator, against the checkout's" compare_estimators "$1"
}

check_alone() {
    local tests
    git reset -q --hard "$base" && git clean -fdq
    # shellcheck disable=SC2086  # a list of names
    check "apply what it needs" apply ${needs[$1]} && check "apply it" apply "$1" && check_commits "$1" HEAD~1 || return 1
    mapfile -t tests < <(git diff --name-only --diff-filter=d HEAD~1 -- 'tests/**/test_*.py')
    check "tests that it brings or changes" run_tests "${tests[@]}"
}

check_together() {
    git reset -q --hard "$base" && git clean -fdq
    # Without the two that start Ray, about the replay buffer: they wait forever where there are too few cores.
    check "apply" apply "${parts[@]}" &&
        check_commits together "$base" &&
        check "verl's CPU tests of the trainer" run_tests tests/trainer --ignore-glob='*/v1/test_re*_on_cpu.py'
}

mapfile -t parts < <(printf '%s\n' "${!needs[@]}" | sort)
failed=()
echo "verl at $base"
SECONDS=0
check "every estimator, before" python3 "$patches/compare.py" record "$scratch/base.pt"
for part in "${parts[@]}"; do
    echo
    echo "$part alone, after: ${needs[$part]:-nothing}"
    check_alone "$part" || failed+=("$part")
done
echo
echo "all parts together"
check_together || failed+=("all parts together")
echo
echo "$SECONDS seconds"
if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
python3 "$patches/compare.py" table "$scratch/base.pt" "$scratch/together.pt"
