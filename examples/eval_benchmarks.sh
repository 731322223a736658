#!/usr/bin/env bash
# Zero-shot pass@1 on the paper's five benchmarks, by verl's own validation, for any number of models in one go.
#
#   bash examples/eval_benchmarks.sh MODEL... [hydra overrides]
#
#   MODEL          a Hugging Face name or folder, a checkpoint of verl (.../global_step_100), or a run; also NAME=FOLDER
#   OVERLAY=FILE   a file with an array EXTRA of overrides for another kind of machine, as cpu/overlay.sh
#
# The same command again asks only what has no answers yet. README.md in this folder has more.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo} # made by: cw-grpo prepare all
BENCHMARKS=${BENCHMARKS:-aime24 amc23 math500 minerva olympiadbench} # or NAME=FILE.parquet
OUT=${OUT:-evaluation}

# As open-rs, whose setting the paper follows: 32,768 tokens for prompt and response.
SETTINGS=(
    data.max_prompt_length="${MAX_PROMPT:-2048}"
    data.max_response_length="${MAX_RESPONSE:-30720}"
    actor_rollout_ref.rollout.val_kwargs.n="${N:-1}"
    actor_rollout_ref.rollout.val_kwargs.temperature="${TEMPERATURE:-0.6}"
    actor_rollout_ref.rollout.val_kwargs.top_p="${TOP_P:-0.95}"
    actor_rollout_ref.rollout.seed="${SEED:-42}"
    actor_rollout_ref.rollout.tensor_model_parallel_size="${ROLLOUT_TP:-1}"
    actor_rollout_ref.rollout.gpu_memory_utilization="${ROLLOUT_MEMORY:-0.8}"
    trainer.nnodes="${NNODES:-1}"
    trainer.n_gpus_per_node="${NGPUS_PER_NODE:-4}"
)
EXTRA=()
if [ -n "${OVERLAY:-}" ]; then
    # shellcheck source=/dev/null
    source "$OVERLAY"
fi

exec cw-grpo evaluate --data-dir "$DATA_DIR" --benchmarks "$BENCHMARKS" --out "$OUT" "${SETTINGS[@]}" "${EXTRA[@]}" "$@"
