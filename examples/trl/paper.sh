#!/usr/bin/env bash
# The paper's experiment with TRL, on one node of four GPUs. paper.yaml has its settings.
#
#   METHOD=cw_grpo|grpo bash examples/trl/paper.sh [any flag of TRL's GRPOConfig, as --beta 0]
#
#   MODEL_PATH   default deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
#   DATA_DIR     default ~/data/cw_grpo, made by: cw-grpo prepare open-rs
#   OUT          default checkpoints/trl/MODEL-METHOD; a run that is there goes on
#   OVERLAY      a file with the arrays LAUNCH and EXTRA for another kind of machine, as cpu.sh
#   DRY_RUN=1    print the resolved settings, and stop
#
# It needs: pip install ".[trl,data,report]" deepspeed "trl[vllm]"
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../kernel.sh"
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo}
OUT=${OUT:-checkpoints/trl/$(basename "$MODEL_PATH")-$METHOD}

[ -n "${DRY_RUN:-}" ] || claim "$OUT"
LAUNCH=(accelerate launch --config_file "$here/4_gpus.yaml")
EXTRA=()
if [ -n "${OVERLAY:-}" ]; then
    # shellcheck source=/dev/null
    source "$OVERLAY"
elif [ -z "${DRY_RUN:-}" ]; then
    export CUDA_VISIBLE_DEVICES=0,1,2
    CUDA_VISIBLE_DEVICES=3 trl vllm-serve --model "$MODEL_PATH" --max_model_len 4608 &
    trap 'kill $!' EXIT
fi
if [ -n "${DRY_RUN:-}" ]; then
    LAUNCH=(python)
    EXTRA+=(--dry_run true --use_cpu true --bf16 false)
fi
"${LAUNCH[@]}" "$here/train.py" --config "$here/paper.yaml" --model "$MODEL_PATH" \
    --train_file "$DATA_DIR/open_rs/train.parquet" --output_dir "$OUT" --cw_kernel "$kernel" "${EXTRA[@]}" "$@"
