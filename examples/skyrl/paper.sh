#!/usr/bin/env bash
# Runs the paper's experiment with SkyRL 0.4.0, on one node with four GPUs. ../paper.md says where each value comes from.
#
#   METHOD=cw_grpo|grpo bash examples/skyrl/paper.sh [any setting of SkyRL, such as trainer.strategy=megatron]
#
#   MODEL_PATH     default deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
#   MAX_PROMPT     tokens, default 512
#   MAX_RESPONSE   tokens, default 4096; use 3584 for Qwen/Qwen2.5-Math-7B-Instruct, which has 4096 positions for both
#   DATA_DIR       default ~/data/cw_grpo, made by: cw-grpo prepare open-rs
#   OUT            default RUNS_DIR/skyrl/MODEL-METHOD; a run in this folder resumes from its last checkpoint
#   RUNS_DIR       default checkpoints, in the current folder
#   DRY_RUN=1      print the settings, one per line, and stop
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/examples/recipe.sh" skyrl
OUT=$(realpath -m "$OUT")
TRAIN_FILE=$DATA_DIR/open_rs/train.parquet
source "$root/examples/skyrl/common.sh"

EXPERIMENT=(
    trainer.algorithm.grpo_norm_by_std=true
    trainer.algorithm.use_kl_loss=true
    trainer.algorithm.kl_estimator_type=k3
    trainer.algorithm.kl_loss_coef=0.04
    trainer.algorithm.use_entropy_loss=false
    trainer.algorithm.eps_clip_low=0.2
    trainer.algorithm.eps_clip_high=0.2
    trainer.policy.optimizer_config.lr=1e-6
    trainer.policy.optimizer_config.adam_betas='[0.9, 0.999]'
    trainer.policy.optimizer_config.weight_decay=0
    trainer.policy.optimizer_config.max_grad_norm=1.0
    trainer.policy.optimizer_config.scheduler=cosine # SkyRL cannot set a minimum, so it ends at 0
    trainer.policy.optimizer_config.num_warmup_steps=20
    trainer.train_batch_size=12
    trainer.policy_mini_batch_size=12 # one update of a batch
    trainer.update_epochs_per_batch=1
    trainer.max_training_steps=200
    trainer.max_prompt_length="$MAX_PROMPT"
    trainer.ckpt_interval=50
    trainer.hf_save_interval=50
    trainer.eval_interval=-1
    trainer.seed=42
    generator.n_samples_per_prompt=12
    generator.sampling_params.temperature=0.7
    generator.sampling_params.top_p=1.0
    generator.sampling_params.max_generate_length="$MAX_RESPONSE"
)
MACHINE=( # every GPU trains and generates, by turns
    trainer.placement.colocate_all=true
    trainer.placement.policy_num_gpus_per_node=4
    trainer.placement.ref_num_gpus_per_node=4
    trainer.micro_train_batch_size_per_gpu=4
    trainer.micro_forward_batch_size_per_gpu=4
    generator.inference_engine.num_engines=4
    generator.inference_engine.tensor_parallel_size=1
    generator.inference_engine.gpu_memory_utilization=0.6
)
set -- "${COMMON[@]}" "${EXPERIMENT[@]}" "${MACHINE[@]}" "$@"
if [ -n "${DRY_RUN:-}" ]; then
    printf '%s\n' "$@"
    exit
fi
claim "$OUT"
exec python3 -m "${PROGRAM[@]}" "$@"
