#!/usr/bin/env bash
# Writes the quickstart's problems, through the real preprocessor, to .cache/quickstart/open_rs/{train,test}.parquet. Does
# nothing if these files exist and the code that makes them has not changed. Needs the environment of install.sh.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/examples/help.sh"
data=${QUICKSTART_DATA:-$root/.cache/quickstart}

hash=$(cat "$root/examples/cpu/problems.py" "$root"/cw_plugin/data/*.py | sha256sum | cut -d ' ' -f 1)
is_there() { [ -e "$data/made_by" ] && [ "$(cat "$data/made_by")" = "$hash" ]; }

is_there && exit
mkdir -p "$data"
exec 9>"$data.lock"
flock -n 9 || { echo "data.sh: another one is making $data; waiting for it ..." && flock 9; }
is_there && exit
rm -rf -- "$data"

python "$root/examples/cpu/problems.py" "$data"
mkdir -p "$data/open_rs"
for split in train test; do # each poses as a copy of Open-RS, whose only split is train
    mkdir -p "$data/$split/knoveleng/open-rs"
    cp "$data/knoveleng/open-rs/$split.jsonl" "$data/$split/knoveleng/open-rs/train.jsonl"
    # What this prints is about overlap with the benchmarks, which does not matter here.
    cw-grpo prepare open-rs --local-dataset-path "$data/$split" --local-save-dir "$data/$split" \
        >"$data/prepare-$split.log" 2>&1 || {
        cat "$data/prepare-$split.log" >&2
        exit 1
    }
    mv "$data/$split/open_rs/train.parquet" "$data/open_rs/$split.parquet"
done
echo "$hash" >"$data/made_by"
