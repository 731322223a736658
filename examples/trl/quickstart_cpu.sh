#!/usr/bin/env bash
# Trains CW-GRPO with TRL on a machine without a GPU, with the model, problems and reward of ../quickstart_cpu.sh.
#
#   bash examples/trl/quickstart_cpu.sh [any flag of TRL's GRPOConfig, such as --learning_rate 3e-4]
#
#   METHOD   cw_grpo | grpo                default cw_grpo
#   STEPS    training steps                default 10
#   SEED     for data order and sampling   default 1
#   RUN      where the run is written      default runs/trl-$METHOD (SEED=2: runs/trl-$METHOD-seed2)
#
# It needs an environment with: pip install ".[trl,data,report]"
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$here/../weights.sh"
STEPS=${STEPS:-10}
RUN=${RUN:-$root/runs/trl-$METHOD${SEED:+-seed$SEED}}
SEED=${SEED:-1}
data=${QUICKSTART_DATA:-$root/.cache/quickstart}/open_rs

python -c "from importlib.metadata import version; version('trl')" 2>/dev/null || {
    echo "TRL is not installed for $(command -v python); install it apart from verl: pip install \".[trl,data,report]\"" >&2
    exit 2
}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
bash "$root/examples/cpu/data.sh"
claim "$RUN"
touch "$RUN/train.log"
written=$(wc -c <"$RUN/train.log") # by earlier starts
echo "Training with METHOD=$METHOD for $STEPS steps; warnings go to $RUN/train.log"
python "$here/train.py" --config "$here/quickstart.yaml" \
    --model "$root/examples/cpu/model" --train_file "$data/train.parquet" --eval_file "$data/test.parquet" \
    --output_dir "$RUN" --cw_weights "$weights" --max_steps "$STEPS" --eval_steps "$STEPS" --seed "$SEED" "$@" \
    2>>"$RUN/train.log" || {
    status=$?
    tail -c "+$((written + 1))" "$RUN/train.log" | tail -n 20 >&2
    exit "$status"
}
cw-grpo report "$RUN" --out "$RUN/report" >"$RUN/report.log"
python "$root/examples/cpu/summary.py" "$RUN"
