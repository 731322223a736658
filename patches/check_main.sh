#!/usr/bin/env bash
# Checks the parts on a checkout of verl: each one with nothing but the part that it needs, and then all of them together.
# After each part it runs what verl's CI would run: format, types, verl's own checks, and the part's tests. It also
# compares the advantages of every estimator with the checkout's. With all parts, verl's CPU tests of the trainer run,
# too. A part that fails is named, and the next one is checked all the same. The checkout itself is left as it is.
#
#   bash patches/check_main.sh CHECKOUT      a git checkout of verl; its HEAD is what the parts are applied to
#
# Needs a Python environment with verl's dependencies, pytest, ruff and mypy on PATH. verl's pre-commit pins ruff 0.12.2
# and mypy 1.17.0; other versions may judge otherwise.
set -euo pipefail

parts=(0001-plugin-guide 0002-otb-on-v1 0003-gdpo-on-v1)
declare -A needs=([0003-gdpo-on-v1]=0002-otb-on-v1) # its tests are in the file that 0002 brings

checkout=$(cd "${1:?usage: bash patches/check_main.sh CHECKOUT}" && pwd)
patches=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
ray=
clean_up() {
    if [ -n "$ray" ]; then
        kill "$ray" 2>/dev/null || true
        wait "$ray" 2>/dev/null || true
    fi
    git -C "$checkout" worktree remove --force "$scratch/verl"
    rm -rf "$scratch"
}
trap clean_up EXIT

git -C "$checkout" worktree add -q --detach "$scratch/verl"
cd "$scratch/verl"
base=$(git rev-parse HEAD)
export PYTHONPATH=$PWD VERL_USE_EXTERNAL_PLUGINS=none

# Runs a command and says how it went, and each minute what it prints meanwhile. If it failed, all that it printed follows.
check() {
    local started=$SECONDS process minute=1
    printf '    %-60s' "$1"
    shift
    "$@" >"$scratch/log" 2>&1 &
    process=$!
    while kill -0 "$process" 2>/dev/null; do
        sleep 1
        if ((SECONDS - started >= 60 * minute)); then
            printf '\n        %s s, load %s, at: %.70s ' "$((SECONDS - started))" "$(cut -d ' ' -f 1 /proc/loadavg)" \
                "$(tail -n 1 "$scratch/log")"
            minute=$((minute + 1))
        fi
    done
    if wait "$process"; then
        # The last line of pytest and mypy says how many.
        echo "ok   $(tail -n 1 "$scratch/log" | grep -E 'passed|no issues' || true)"
    else
        echo FAILED
        tail -n 40 "$scratch/log"
        return 1
    fi
}

# One Ray for all tests. Ray gives up after 30 seconds where a machine is busy, so it is started until it is there. It has
# more CPUs than the machine, because verl's tests hold several that do nothing.
start_ray() {
    export RAY_AUTH_MODE=disabled RAY_TMPDIR=$scratch RAY_worker_register_timeout_seconds=1800
    export RAY_health_check_timeout_ms=60000 RAY_health_check_failure_threshold=30
    local address=$scratch/ray/ray_current_cluster attempt=0 started=$SECONDS
    until [ -s "$address" ]; do
        if [ -z "$ray" ] || ! kill -0 "$ray" 2>/dev/null; then
            attempt=$((attempt + 1))
            if ((attempt > 10)); then
                echo "Ray did not start in ten attempts:"
                tail -n 20 "$scratch/ray.log"
                return 1
            fi
            echo "waiting for Ray to start: attempt $attempt, $((SECONDS - started)) s, load $(cut -d ' ' -f 1 /proc/loadavg)"
            rm -rf "$scratch/ray"
            ray start --head --block --port=0 --num-cpus=16 --include-dashboard=false --disable-usage-stats \
                >"$scratch/ray.log" 2>&1 &
            ray=$!
        fi
        sleep 1
    done
    RAY_ADDRESS=$(cat "$address")
    export RAY_ADDRESS
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
    check "$(ruff --version): check" ruff check "${changed[@]}" &&
        check "$(ruff --version): format" ruff format --check "${changed[@]}" &&
        check "$(mypy --version)" mypy "${changed[@]}" &&
        check "verl's own checks" run_own_checks &&
        check "nothing was reformatted or generated anew" git diff --exit-code &&
        check "every estimator, against the checkout's" compare_estimators "$1"
}

check_part() {
    local tests
    git reset -q --hard "$base" && git clean -fdq
    # shellcheck disable=SC2086  # nothing, if it needs nothing
    check "apply what it needs" apply ${needs[$1]:-} && check "apply it" apply "$1" && check_commits "$1" HEAD~1 || return 1
    mapfile -t tests < <(git diff --name-only --diff-filter=d HEAD~1 -- 'tests/**/test_*.py')
    check "tests that it brings or changes" run_tests "${tests[@]}"
}

check_together() {
    git reset -q --hard "$base" && git clean -fdq
    check "apply" apply "${parts[@]}" &&
        check_commits together "$base" &&
        check "verl's CPU tests of trainer and plugins" run_tests tests/trainer tests/plugin
}

failed=()
SECONDS=0
echo "verl at $base"
start_ray
check "every estimator, before" python3 "$patches/compare.py" record "$scratch/base.pt"
for part in "${parts[@]}"; do
    echo
    echo "$part, after: ${needs[$part]:-nothing}"
    check_part "$part" || failed+=("$part")
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
