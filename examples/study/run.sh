#!/usr/bin/env bash
# Runs one of the studies on a machine without a GPU. If it is interrupted, run it again: it continues.
#
#   bash examples/study/run.sh              the whole study again, with verl: about 14 hours on two cores
#   bash examples/study/run.sh boundary     the runs that boundary/results lacks, with TRL
#   bash examples/study/run.sh sizes        the models and runs that sizes/ lacks, with TRL
#   bash examples/study/run.sh entropy      the runs that entropy/results lacks, with TRL
#   bash examples/study/run.sh pretrained   the model and the runs that pretrained/results lacks, with TRL; on a GPU if there is one
#   bash examples/study/run.sh horizon      the same for horizon/results
#   bash examples/study/run.sh league       the runs that league/results lacks, with TRL
#   bash examples/study/run.sh league MODULE:FUNCTION      the row of a weighting of your own, beside the others
#
#   WORK      where the study's runs are written      default runs/study
#   RESULTS   where metrics and the page go           default WORK/results, or the folder results of the other study
#   JOBS      runs at a time                          default 2
#   VENV      the quickstart's environment            default .venv, made if it does not exist, with PYTHON
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

study=${1:-study}
studies="study boundary sizes entropy pretrained horizon league"
[[ " $studies " == *" $study "* ]] || { echo "unknown study '$study': say one of $studies" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${VENV:-$root/.venv}
trl=$root/.cache/trl-1.16.0 # beside the environment, because verl 0.9.1 cannot train where there is such a TRL
export WORK=${WORK:-$root/runs/study} JOBS=${JOBS:-2}

bash "$root/examples/cpu/install.sh" "$venv"
export PATH=$venv/bin:$PATH
if [ "$study" = study ]; then
    export RESULTS=${RESULTS:-$WORK/results} # the committed results stay as they are
    python "$here/study.py"
    python "$here/report.py" study "$RESULTS"
else
    results=$here/$study/results
    [ $# -lt 2 ] || results=$root/runs/$study # a weighting of one's own
    export RESULTS=${RESULTS:-$results}
    [ -e "$trl/trl" ] || pip install --quiet --no-deps --target "$trl" trl==1.16.0
    export PYTHONPATH=$trl:$root:$here${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
    # Else glibc returns memory after each operation, and gets it again for the next.
    export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
    export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
fi
if [ "$study" = boundary ]; then
    python "$here/boundary/train.py" boundary
    python "$here/report.py" boundary "$RESULTS"
elif [ "$study" = sizes ]; then
    for part in "sizes 512 256 64 128" "largest 896"; do
        read -r plan widths <<<"$part"
        printf '%s\n' $widths | xargs -P "$JOBS" -I{} python "$here/sizes/teach.py" {}
        python "$here/boundary/train.py" "$plan"
        python "$here/sizes/page.py" "$RESULTS"
    done
elif [ "$study" = entropy ]; then
    python "$here/entropy/phases.py"
    python "$here/entropy/curves.py" "$RESULTS"
elif [ "$study" = league ]; then
    python "$here/league/league.py" "${@:2}"
    [ $# -eq 1 ] || exit 0 # it has printed the row, and writes no page
elif [ "$study" = pretrained ] || [ "$study" = horizon ]; then
    model=$root/.cache/smollm2
    python -c 'import gguf' 2>/dev/null || pip install --quiet gguf==0.19.0
    python "$here/pretrained/model.py" "$model"
    makes_runs=$here/pretrained/train.py
    [ "$study" = pretrained ] || makes_runs=$here/horizon/make_runs.py
    seq "$JOBS" | xargs -P "$JOBS" -I{} python "$makes_runs" "$model"
    python "$here/$study/page.py" "$RESULTS"
fi
echo "The page: $RESULTS/README.md"
