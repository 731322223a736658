# The run_*.sh scripts in this folder source this file. It has the paper's experiment in verl's terms, for any model and
# backend. paper.md says where every value comes from. verl.sh has the settings that all runs in this folder share.

METHOD=${METHOD:-cw_grpo}
PROJECT=cw_grpo
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-4}

DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo} # made by: cw-grpo prepare all
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/open_rs/train.parquet}
VAL_FILES=${VAL_FILES:-$DATA_DIR/math500/test.parquet}
NAME=${NAME:-$(basename "$0" .sh)-$METHOD${SEED:+-seed$SEED}}
OUT=${OUT:-${RUNS_DIR:-checkpoints}/cw_grpo/$NAME}
LOGGER=${LOGGER:-'["console","file","tensorboard"]'}

PROMPTS=${PROMPTS:-12}
RESPONSES=${RESPONSES:-12}
STEPS=${STEPS:-200}
EPOCHS=100
SAVE_FREQ=${SAVE_FREQ:-50} # 100, 150 and 200 are the paper's checkpoints
TEST_FREQ=${TEST_FREQ:--1}
MAX_PROMPT=${MAX_PROMPT:-512}
MAX_RESPONSE=${MAX_RESPONSE:-4096}
KL_COEF=${KL_COEF:-0.04}
SEED=${SEED:-42}

ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.35} # of each GPU, for vLLM: all responses at once on 80 GB
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-$((4 * (MAX_PROMPT + MAX_RESPONSE)))}

METRICS=metrics-$(date +%Y%m%d-%H%M%S).jsonl # a run that is resumed begins a new file
source "$(dirname "${BASH_SOURCE[0]}")/verl.sh"
use_method
SETTINGS+=(
    data.filter_overlong_prompts=True
    data.truncation=error
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1
    actor_rollout_ref.actor.optim.weight_decay=0
    actor_rollout_ref.actor.optim.clip_grad=1.0
    actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS"
    actor_rollout_ref.actor.ppo_epochs=1
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.kl_loss_coef="$KL_COEF"
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.entropy_from_logits_with_chunking=True # else float32 copies of all logits
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.temperature=0.7
    actor_rollout_ref.rollout.top_p=1.0
    actor_rollout_ref.rollout.gpu_memory_utilization="$ROLLOUT_MEMORY"
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
    "+reward.custom_reward_function.reward_kwargs.model_path='$MODEL_PATH'" # does its template open <think>?
    algorithm.use_kl_in_reward=False
    algorithm.norm_adv_by_std_in_grpo=True
    trainer.nnodes="$NNODES"
    trainer.n_gpus_per_node="$NGPUS_PER_NODE"
    trainer.val_before_train=False
)

# train fsdp|megatron OVERRIDE...: run verl's main_ppo; later overrides win. verl.sh has OVERLAY and DRY_RUN.
train() {
    case $1 in
        fsdp) BACKEND=(
            actor_rollout_ref.actor.strategy=fsdp2
            actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
            actor_rollout_ref.ref.fsdp_config.strategy=fsdp2
            actor_rollout_ref.model.enable_gradient_checkpointing=True
            actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
            actor_rollout_ref.actor.optim.min_lr_ratio=0.1
        ) ;;
        megatron) BACKEND=(
            model_engine=megatron
            actor_rollout_ref.actor.megatron.tensor_model_parallel_size="${TP:-1}"
            actor_rollout_ref.actor.megatron.pipeline_model_parallel_size="${PP:-1}"
            actor_rollout_ref.ref.megatron.tensor_model_parallel_size="${TP:-1}"
            actor_rollout_ref.ref.megatron.pipeline_model_parallel_size="${PP:-1}"
            actor_rollout_ref.actor.optim.lr_decay_style=cosine
            actor_rollout_ref.actor.optim.min_lr=1e-7
            # Gradient checkpointing in Megatron's words.
            actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
            actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
            actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
            # What stays on the CPU while vLLM answers.
            actor_rollout_ref.actor.megatron.param_offload=True
            actor_rollout_ref.actor.megatron.optimizer_offload=True
            actor_rollout_ref.ref.megatron.param_offload=True
        ) && export CUDA_DEVICE_MAX_CONNECTIONS=1 ;;
    esac
    shift
    SETTINGS+=("${BACKEND[@]}")
    start "$@"
}
