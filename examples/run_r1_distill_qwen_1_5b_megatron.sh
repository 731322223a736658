#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-1.5B | Megatron and vLLM | the paper's settings, on NNODES nodes of 4 GPUs
# Four GPUs of 80 GB, of which the fullest stage of a step takes 43 GiB. For 48 GB: TP=2
#
#   METHOD=cw_grpo|grpo|clip_cov bash examples/run_r1_distill_qwen_1_5b_megatron.sh [hydra overrides]
#   DRY_RUN=1 prints the configuration without training. verl.sh describes this and OVERLAY, and paper.sh the other variables.
set -euo pipefail
source "${0%"${0##*/}"}./supervised.sh"

MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
source "$(dirname "${BASH_SOURCE[0]}")/paper.sh"
train megatron "$@"
