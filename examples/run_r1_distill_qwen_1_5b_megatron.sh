#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-1.5B | Megatron and vLLM | the paper's settings, on NNODES nodes of 4 GPUs
#
#   METHOD=cw_grpo|grpo|clip_cov bash examples/run_r1_distill_qwen_1_5b_megatron.sh [hydra overrides]
#   DRY_RUN=1 prints the configuration and trains nothing; paper.sh has this and the other knobs
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
TP=${TP:-1}
PP=${PP:-1}

source "$(dirname "${BASH_SOURCE[0]}")/paper.sh"

BACKEND=(
    model_engine=megatron
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size="$TP"
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size="$PP"
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size="$TP"
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size="$PP"
    actor_rollout_ref.actor.optim.lr_decay_style=cosine
    actor_rollout_ref.actor.optim.min_lr=1e-7
)

train "$@"
