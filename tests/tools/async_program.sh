#!/usr/bin/env bash
# Two steps of an asynchronous program of verl on CPU cores: async_program.sh MODULE [any hydra override]
# Weights reach its rollout servers by file_checkpoint_engine.py. OUT, TRAIN_FILES and the others are those of verl.sh.
set -euo pipefail
program=$1
shift
METRICS=metrics.jsonl PROJECT=asynchronous NAME=cw_grpo SEED=1 EPOCHS=10 SAVE_FREQ=2 CHECKPOINTS=checkpoints NGPUS=1
source "$(dirname "${BASH_SOURCE[0]}")/../../examples/verl.sh"
use_method
source examples/cpu/overlay.sh
mkdir -p "$OUT/weights"
export FILE_CHECKPOINT_ENGINE=$OUT/weights
SETTINGS+=(
    "hydra.searchpath=[pkg://verl.trainer.config]" # one of them expects to start in a clone
    trainer.val_before_train=False trainer.test_freq=-1
    actor_rollout_ref.hybrid_engine=False
    actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS"
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192
    actor_rollout_ref.rollout.max_num_seqs=32
    actor_rollout_ref.rollout.checkpoint_engine.backend=file
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=file_checkpoint_engine
    rollout.n_gpus_per_node=1
)
exec python3 -m "$program" "${SETTINGS[@]}" "${EXTRA[@]}" ray_kwargs.ray_init.num_cpus=32 ray_kwargs.ray_init.num_gpus=2 "$@"
