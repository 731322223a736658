#!/usr/bin/env bash
# Qwen2.5-Math-7B-Instruct | Megatron and vLLM | the paper's settings, on NNODES nodes of 4 GPUs
# Four GPUs of 80 GB, of which the fullest stage of a step takes 59 GiB. For 48 GB: gpu/README.md
#
#   METHOD=cw_grpo|grpo|clip_cov bash examples/run_qwen2_5_math_7b_megatron.sh [hydra overrides]
#   DRY_RUN=1 prints the configuration without training. verl.sh describes this and OVERLAY, and paper.sh the other variables.
set -euo pipefail
source "${0%"${0##*/}"}./supervised.sh"

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-7B-Instruct}
MAX_RESPONSE=${MAX_RESPONSE:-3584} # with the prompt 4096, all that the model's positions allow; the paper says 4096
TP=${TP:-2}
source "$(dirname "${BASH_SOURCE[0]}")/paper.sh"
train megatron "$@"
