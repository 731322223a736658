#!/usr/bin/env bash
# The boundary study, or the size study, on a machine without a GPU; run again, it goes on where it was interrupted.
#
#   bash examples/study/boundary/run.sh
#   bash examples/study/boundary/run.sh sizes
#
#   JOBS      runs at a time, one core each                    default 2
#   RESULTS   where metrics.parquet and the page are written   default results/ of the study
#   VENV      the quickstart's environment, made if need be    default .venv
set -euo pipefail

study=${1:-boundary}
[ "$study" = boundary ] || [ "$study" = sizes ] || { echo "unknown study '$study': say boundary or sizes" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
venv=${VENV:-$root/.venv}
trl=$root/.cache/trl-1.16.0 # beside the environment, because verl 0.9.1 cannot train where there is such a TRL

bash "$root/examples/cpu/install.sh" "$venv"
export PATH=$venv/bin:$PATH
[ -e "$trl/trl" ] || pip install --quiet --no-deps --target "$trl" trl==1.16.0
export PYTHONPATH=$trl:$root:$root/examples/study OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export JOBS=${JOBS:-2} RESULTS=${RESULTS:-$here/../$study/results}
# Else glibc returns memory after each operation, and gets it again for the next.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1

if [ "$study" = boundary ]; then
  python "$here/boundary.py"
  # Measured once, on the starting model.
  [ -e "$RESULTS/first_wrong.parquet" ] || cp "$here/results/first_wrong.parquet" "$RESULTS"
  python "$here/../report.py" boundary "$RESULTS"
else
  for part in "sizes 512 256 64 128" "largest 896"; do
    read -r plan widths <<<"$part"
    printf '%s\n' $widths | xargs -P "$JOBS" -I{} python "$here/../sizes/teach.py" {}
    python "$here/boundary.py" "$plan"
    python "$here/../sizes/page.py" "$RESULTS"
  done
fi
echo "The page: $RESULTS/README.md"
