#!/usr/bin/env bash
# CW-GRPO, another weighting, or plain GRPO | DeepSeek-R1-Distill-Qwen-1.5B | FSDP2 and vLLM | one node of 4 GPUs of 48 GB
#
#   bash run_r1_distill_qwen_1.5b.sh [any hydra override of verl]
#
#   WEIGHTS    gaussian (default) | none (plain GRPO) | ar | steer | ... see README.md
#   DATA_DIR   where "cw-grpo prepare all" has written
set -xeuo pipefail

WEIGHTS=${WEIGHTS:-gaussian}
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo}
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/open_rs/train.parquet}
VAL_FILES=${VAL_FILES:-$DATA_DIR/math500/test.parquet}
NGPUS=${NGPUS:-4}
STEPS=${STEPS:-200}
max_prompt_length=512
max_response_length=4096
max_tokens_per_gpu=$((4 * (max_prompt_length + max_response_length)))

DATA=(
    data.train_files="$TRAIN_FILES"
    data.val_files="$VAL_FILES"
    data.train_batch_size=12
    data.max_prompt_length=$max_prompt_length
    data.max_response_length=$max_response_length
    data.filter_overlong_prompts=True
)

ALGORITHM=(
    algorithm.adv_estimator=cw_grpo
    +algorithm.cw_grpo.weights="$WEIGHTS"
    algorithm.use_kl_in_reward=False
    # 1 for the right answer and 1 for the format
    reward.custom_reward_function.path=pkg://cw_plugin.lab.rewards
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.model_path="$MODEL_PATH"
)

ACTOR=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
    actor_rollout_ref.actor.optim.min_lr_ratio=0.1
    actor_rollout_ref.actor.optim.weight_decay=0
    actor_rollout_ref.actor.ppo_mini_batch_size=12
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$max_tokens_per_gpu
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.kl_loss_coef=0.04
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$max_tokens_per_gpu
)

ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.n=12
    actor_rollout_ref.rollout.temperature=0.7
    actor_rollout_ref.rollout.gpu_memory_utilization=0.35
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$max_tokens_per_gpu
)

TRAINER=(
    trainer.project_name=cw_grpo
    trainer.experiment_name="r1_distill_qwen_1.5b-$WEIGHTS"
    trainer.logger='["console","file"]'
    trainer.nnodes=1
    trainer.n_gpus_per_node="$NGPUS"
    trainer.total_epochs=100
    trainer.total_training_steps="$STEPS"
    trainer.save_freq=50
    trainer.test_freq=-1
    trainer.val_before_train=False
)

python3 -m verl.trainer.main_ppo "${DATA[@]}" "${ALGORITHM[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"
