#!/usr/bin/env bash
# Writes the quickstart's problems, through the real preprocessor, to .cache/quickstart/open_rs/{train,test}.parquet. Does
# nothing if these files exist and the code that makes them has not changed. Needs the environment of install.sh.
# QUICKSTART_DATA names another folder; one that was not made here is left alone.
set -euo pipefail

source "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}../help.sh" # from this file's folder, without cd, which help.sh prepares
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
data=$(realpath -ms "${QUICKSTART_DATA:-$root/.cache/quickstart}")

hash=$(cat "$root/examples/cpu/problems.py" "$root"/cw_plugin/lab/data/*.py | sha256sum | cut -d ' ' -f 1)
is_there() {
    [ -e "$data/open_rs/train.parquet" ] && [ -e "$data/open_rs/test.parquet" ] &&
        [ "$(cat "$data/made_by" 2>/dev/null)" = "$hash" ]
}

is_there && exit
mkdir -p "$data"
exec 9>"$data.lock"
flock -n 9 || { echo "data.sh: another one is making $data; waiting for it ..." && flock 9; }
is_there && exit
if [ -n "${QUICKSTART_DATA:-}" ] && [ -n "$(ls -A "$data")" ] && [ ! -e "$data/made_by" ]; then
    echo "data.sh: $data holds files that were not made here; name an empty folder with QUICKSTART_DATA" >&2
    exit 2
fi
echo unfinished >"$data/made_by" # first, so that a start after an interruption knows the folder
find "$data/" -mindepth 1 ! -name made_by -delete

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
