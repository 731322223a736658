#!/usr/bin/env bash
# Runs the paper's experiment with OpenRLHF 0.11.2, on four GPUs of one node. ../paper.md says where each value comes from.
#
#   METHOD=cw_grpo|grpo bash examples/openrlhf/paper.sh [any argument of train_ppo_ray, such as --ds.zero_stage 3]
#
#   MODEL_PATH     default deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
#   MAX_PROMPT     tokens, default 512
#   MAX_RESPONSE   tokens, default 4096; use 3584 for Qwen/Qwen2.5-Math-7B-Instruct, which has 4096 positions for both
#   DATA_DIR       default ~/data/cw_grpo, made by: cw-grpo prepare open-rs
#   OUT            default RUNS_DIR/openrlhf/MODEL-METHOD; a run in this folder resumes from its last checkpoint
#   RUNS_DIR       default checkpoints, in the current folder; a run needs 114 GB with the 1.5B model, 487 GB with the 7B
#   DRY_RUN=1      print the arguments, one per line, and stop
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/examples/recipe.sh" openrlhf
OUT=$(realpath -m "$OUT")
TRAIN_FILE=$OUT/train.parquet # drawn below
ROWS=2400                     # 200 steps of 12 prompts
SEED=42
source "$root/examples/openrlhf/common.sh"

EXPERIMENT=(
    --algo.kl.use_loss
    --algo.kl.estimator k3
    --algo.kl.init_coef 0.04
    --actor.adam.lr 1e-6
    --actor.adam.betas 0.9 0.999
    --actor.adam.weight_decay 0
    --actor.lr_scheduler cosine_with_min_lr
    --actor.min_lr_ratio 0.1
    --actor.lr_warmup_ratio 0.1
    --actor.max_norm 1.0
    --actor.eps_clip 0.2
    --rollout.batch_size 12
    --rollout.n_samples_per_prompt 12
    --rollout.temperature 0.7
    --rollout.top_p 1.0
    --rollout.max_new_tokens "$MAX_RESPONSE"
    --data.max_len "$((MAX_PROMPT + MAX_RESPONSE))"
    --data.max_samples "$ROWS"
    --train.batch_size 144 # one update of a batch
    --train.max_epochs 1
    --train.num_episodes 1
    --train.seed "$SEED"
    --ckpt.save_steps 50
    --ckpt.max_num 10
    --ckpt.save_hf
)
MACHINE=( # every GPU trains and generates, by turns
    --actor.num_gpus_per_node 4
    --actor.gradient_checkpointing_enable
    --ref.num_nodes 1
    --ref.num_gpus_per_node 4
    --vllm.num_engines 4
    --vllm.tensor_parallel_size 1
    --vllm.gpu_memory_utilization 0.6
    --vllm.enable_sleep
    --ds.enable_sleep
    --ds.packing_samples
    --ds.zero_stage 2
    --train.colocate_all
    --train.micro_batch_size 4
    --rollout.micro_batch_size 4
)
set -- "${COMMON[@]}" "${EXPERIMENT[@]}" "${MACHINE[@]}" "$@"
if [ -n "${DRY_RUN:-}" ]; then
    printf '%s\n' "$@"
    exit
fi
claim "$OUT"
# Without this, OpenRLHF would take the first rows of the file, and cut prompts that are too long.
python3 "$root/examples/openrlhf/draw.py" "$DATA_DIR/open_rs/train.parquet" "$TRAIN_FILE" \
    --rows "$ROWS" --seed "$SEED" --model "$MODEL_PATH" --max-prompt "$MAX_PROMPT"
exec python3 -m cw_plugin.hosts.openrlhf "$@"
