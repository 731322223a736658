#!/usr/bin/env bash
# Zero-shot pass@1 on the paper's five benchmarks, by verl's own validation, for any number of models in one go.
#
#   bash examples/eval_benchmarks.sh MODEL_OR_CHECKPOINT... [hydra overrides]
#
#   MODEL_OR_CHECKPOINT   a Hugging Face name or folder, .../global_step_100 of verl (FSDP or Megatron), or a folder of these
#   OVERLAY=FILE          a file with an array EXTRA of overrides for another kind of machine, as cpu/overlay.sh
#
# The same command again asks only what has no answer yet. README.md in this folder has more.
set -euo pipefail

NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-4}

DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo} # made by: cw-grpo prepare all
BENCHMARKS=${BENCHMARKS:-aime24 amc23 math500 minerva olympiadbench} # or NAME@SAMPLES, NAME=FILE.parquet
OUT=${OUT:-evaluation}

# As open-rs, whose setting the paper follows: 32,768 tokens for prompt and response.
N=${N:-1}
TEMPERATURE=${TEMPERATURE:-0.6}
TOP_P=${TOP_P:-0.95}
MAX_PROMPT=${MAX_PROMPT:-2048}
MAX_RESPONSE=${MAX_RESPONSE:-30720}
SEED=${SEED:-42}

ENGINE=${ENGINE:-verl} # lighteval (on vLLM) and lighteval-accelerate take overrides of lighteval's model_parameters.*
LIGHTEVAL=${LIGHTEVAL:-lighteval} # its executable, in whatever environment

ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.8}

MACHINE=()
EXTRA=()
if [ "$ENGINE" = verl ]; then
    MACHINE=(
        trainer.nnodes="$NNODES"
        trainer.n_gpus_per_node="$NGPUS_PER_NODE"
        actor_rollout_ref.rollout.tensor_model_parallel_size="$ROLLOUT_TP"
        actor_rollout_ref.rollout.gpu_memory_utilization="$ROLLOUT_MEMORY"
    )
    if [ -n "${OVERLAY:-}" ]; then
        # shellcheck source=/dev/null
        source "$OVERLAY"
    fi
fi

exec cw-grpo evaluate \
    --data-dir "$DATA_DIR" --benchmarks "$BENCHMARKS" --out "$OUT" \
    --n "$N" --temperature "$TEMPERATURE" --top-p "$TOP_P" --seed "$SEED" \
    --engine "$ENGINE" --lighteval "$LIGHTEVAL" \
    --max-prompt "$MAX_PROMPT" --max-response "$MAX_RESPONSE" \
    "${MACHINE[@]}" "${EXTRA[@]}" "$@"
