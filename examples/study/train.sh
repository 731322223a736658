#!/usr/bin/env bash
# Does one training run of the study: verl's main_ppo on a CPU, on the products of task.py. study.py calls this script.
#
#   METHOD=cw_grpo LR=3e-5 SEED=1 STEPS=200 RUN=folder bash examples/study/train.sh [any hydra override of verl]
#
#   METHOD   grpo | clip_cov | clip_cov_RATIO | cw_grpo | cw_grpo_batch | cw_grpo_loss | cw_grpo_shuffled (variants.py)
#   MODEL, DATA   the folders that task.py made
#   DRY_RUN=1     print the resolved configuration, and stop
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
: "${METHOD:?}" "${LR:?}" "${SEED:?}" "${STEPS:?}" "${RUN:?}" "${MODEL:?}" "${DATA:?}"
PROJECT=study
NAME=$METHOD
EPOCHS=1000
SAVE_FREQ=100
TEST_FREQ=50
LOGGER='["console","file"]'
OUT=$RUN
CHECKPOINTS=checkpoints
TRAIN_FILES=$DATA/train.parquet
VAL_FILES=$DATA/${HELD_OUT:-test}.parquet
MODEL_PATH=$MODEL
PROMPTS=8
RESPONSES=8
MAX_PROMPT=13   # all of them have 13; padding costs as much as tokens
MAX_RESPONSE=24 # the taught ones have at most 22
MAX_LENGTH=40
OVERLAY=$root/examples/cpu/overlay.sh
source "$root/examples/verl.sh"

# Plain GRPO by way of weights=none: its advantages bit for bit, with the covariance measured.
plain=(algorithm.adv_estimator=cw_grpo +algorithm.cw_grpo.weights=none)
clip_cov=("${plain[@]}" actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov
    actor_rollout_ref.actor.clip_ratio_low=1 actor_rollout_ref.actor.clip_ratio_high=1)
case $METHOD in
    grpo) ALGORITHM=("${plain[@]}") ;;
    clip_cov) ALGORITHM=("${clip_cov[@]}") ;; # verl's defaults are the authors' 0.0002, 1.0 and 5.0
    clip_cov_0.*) ALGORITHM=("${clip_cov[@]}" actor_rollout_ref.actor.policy_loss.clip_cov_ratio="${METHOD#clip_cov_}") ;;
    cw_grpo) ALGORITHM=(algorithm.adv_estimator=cw_grpo) ;;
    cw_grpo_batch) ALGORITHM=(algorithm.adv_estimator=cw_grpo +algorithm.cw_grpo.scope=batch) ;;
    cw_grpo_loss) ALGORITHM=(algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo) ;;
    cw_grpo_shuffled)
        ALGORITHM=(algorithm.adv_estimator=cw_grpo +algorithm.cw_grpo.weights=variants:shuffled)
        export PYTHONPATH=$root/examples/study
        ;;
    *)
        echo "METHOD=$METHOD is unknown; use one of those in $0" >&2
        exit 2
        ;;
esac

SETTINGS+=(
    "${ALGORITHM[@]}"
    actor_rollout_ref.model.enable_gradient_checkpointing=False
    actor_rollout_ref.actor.optim.lr="$LR"
    actor_rollout_ref.actor.optim.weight_decay=0.01 # verl's default, as the next
    actor_rollout_ref.actor.optim.clip_grad=1.0
    actor_rollout_ref.actor.ppo_mini_batch_size=4
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.rollout.max_num_seqs=256
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.n=1
    +reward.custom_reward_function.reward_kwargs.opens_think=False
    trainer.max_actor_ckpt_to_keep=1
    trainer.val_before_train=True
)
start "$@"
