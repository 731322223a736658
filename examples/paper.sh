# The paper's experiment in verl's terms, whatever the model and the backend; sourced by the run_*.sh beside it.
# paper.md in this folder says for every value where it comes from.

METHOD=${METHOD:-cw_grpo}
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-4}

DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo} # made by: cw-grpo prepare all
TRAIN_FILES=${TRAIN_FILES:-$DATA_DIR/open_rs/train.parquet}
VAL_FILES=${VAL_FILES:-$DATA_DIR/math500/test.parquet}
NAME=${NAME:-$(basename "$0" .sh)-$METHOD${SEED:+-seed$SEED}}
OUT=${OUT:-checkpoints/cw_grpo/$NAME}
OVERLAY=${OVERLAY:-}
[ ! -e "$MODEL_PATH" ] || MODEL_PATH=$(realpath "$MODEL_PATH")
for name in TRAIN_FILES VAL_FILES OUT OVERLAY; do # other folders and nodes must understand them
    case ${!name} in '' | /* | *://*) ;; *) printf -v "$name" %s "$PWD/${!name}" ;; esac
done
LOGGER=${LOGGER:-'["console","file","tensorboard"]'}

PROMPTS=${PROMPTS:-12}
RESPONSES=${RESPONSES:-12}
STEPS=${STEPS:-200}
SAVE_FREQ=${SAVE_FREQ:-50} # 100, 150 and 200 are the paper's checkpoints
TEST_FREQ=${TEST_FREQ:--1}
MAX_PROMPT=${MAX_PROMPT:-512}
MAX_RESPONSE=${MAX_RESPONSE:-4096}
KL_COEF=${KL_COEF:-0.04}
SEED=${SEED:-42}

ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_MEMORY=${ROLLOUT_MEMORY:-0.6}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-$((4 * (MAX_PROMPT + MAX_RESPONSE)))}

# The paper's three rows differ only in this.
case $METHOD in
    cw_grpo) ALGORITHM=(algorithm.adv_estimator=cw_grpo) ;;
    grpo) ALGORITHM=(algorithm.adv_estimator=grpo) ;;
    clip_cov) ALGORITHM=(
        algorithm.adv_estimator=grpo
        actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov
        actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.0002
        actor_rollout_ref.actor.policy_loss.clip_cov_lb=1.0
        actor_rollout_ref.actor.policy_loss.clip_cov_ub=5.0
        actor_rollout_ref.actor.clip_ratio_low=1
        actor_rollout_ref.actor.clip_ratio_high=1
    ) ;;
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo, grpo or clip_cov" >&2
        exit 2
        ;;
esac

# The inner quotes are for hydra, which would interpret "=" or a space in a path.
DATA=(
    data.train_files="'$TRAIN_FILES'"
    data.val_files="'$VAL_FILES'"
    data.train_batch_size="$PROMPTS"
    data.max_prompt_length="$MAX_PROMPT"
    data.max_response_length="$MAX_RESPONSE"
    data.filter_overlong_prompts=True
    data.truncation=error
    data.seed="$SEED"
)
MODEL=(
    actor_rollout_ref.model.path="'$MODEL_PATH'"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)
ACTOR=(
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
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n="$RESPONSES"
    actor_rollout_ref.rollout.seed="$SEED"
    actor_rollout_ref.rollout.temperature=0.7
    actor_rollout_ref.rollout.top_p=1.0
    actor_rollout_ref.rollout.tensor_model_parallel_size="$ROLLOUT_TP"
    actor_rollout_ref.rollout.gpu_memory_utilization="$ROLLOUT_MEMORY"
    actor_rollout_ref.rollout.max_model_len="$((MAX_PROMPT + MAX_RESPONSE))"
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu="$MAX_TOKENS_PER_GPU"
)
REWARD=(
    reward.custom_reward_function.path=pkg://cw_plugin.rewards
    reward.custom_reward_function.name=compute_score
    "+reward.custom_reward_function.reward_kwargs.model_path='$MODEL_PATH'" # does its template open <think>?
)
TRAINER=(
    algorithm.use_kl_in_reward=False
    algorithm.norm_adv_by_std_in_grpo=True
    trainer.project_name=cw_grpo
    trainer.experiment_name="'$NAME'"
    trainer.logger="$LOGGER"
    trainer.nnodes="$NNODES"
    trainer.n_gpus_per_node="$NGPUS_PER_NODE"
    trainer.total_training_steps="$STEPS"
    trainer.total_epochs=100 # the steps above end the run
    trainer.save_freq="$SAVE_FREQ"
    trainer.test_freq="$TEST_FREQ"
    trainer.val_before_train=False
    # Everything that cw-grpo report reads lies in one folder; a run that is resumed begins a new metrics file.
    trainer.default_local_dir="'$OUT'"
    trainer.validation_data_dir="'$OUT/validation'"
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH="'$OUT/metrics-$(date +%Y%m%d-%H%M%S).jsonl'"
    +ray_kwargs.ray_init.runtime_env.env_vars.TENSORBOARD_DIR="'$OUT/tensorboard'"
    hydra.run.dir="'$OUT/hydra'"
)

# train fsdp|megatron OVERRIDE... : run verl's main_ppo; later arguments win.
#   DRY_RUN=1         print the resolved configuration, and stop
#   OVERLAY=FILE      a file with an array EXTRA of overrides for another kind of machine, as cpu/overlay.sh
#
# launch.py locks OUT, resumes its run, refuses other settings, and ends all processes of the run when this script ends.
# A remote OUT (scheme://) has none of this.
train() {
    local main=(python3 -m verl.trainer.main_ppo)
    local launch=(python3 examples/launcher/launch.py)
    cd "$(dirname "${BASH_SOURCE[0]}")/.." # verl and Ray import from here: a folder "trl" would be taken for the package
    case $1 in
        fsdp) BACKEND=(
            actor_rollout_ref.actor.strategy=fsdp2
            actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
            actor_rollout_ref.ref.fsdp_config.strategy=fsdp2
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
        ) && export CUDA_DEVICE_MAX_CONNECTIONS=1 ;;
    esac
    shift
    EXTRA=()
    if [ -n "$OVERLAY" ]; then
        # shellcheck source=/dev/null
        source "$OVERLAY"
    fi
    local settings=(
        "${ALGORITHM[@]}" "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${REWARD[@]}" "${TRAINER[@]}"
        "${BACKEND[@]}" "${EXTRA[@]}" "$@"
    )
    if [ -n "${DRY_RUN:-}" ]; then
        exec python3 -m cw_plugin config "${settings[@]}"
    fi
    python3 -m cw_plugin doctor --quick "${settings[@]}"
    case $OUT in *://*) exec "${main[@]}" "${settings[@]}" ;; esac
    exec "${launch[@]}" "$OUT" "${main[@]}" "${settings[@]}"
}
