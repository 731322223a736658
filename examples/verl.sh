# Every run of verl in this folder shares this file: paper.sh, quickstart_cpu.sh and study/train.sh source it, add their own
# settings to SETTINGS, and call start. Before that, they set METHOD, PROJECT, NAME, SEED, STEPS, SAVE_FREQ, TEST_FREQ,
# EPOCHS, TRAIN_FILES, VAL_FILES, MODEL_PATH, MAX_PROMPT and MAX_RESPONSE (tokens), PROMPTS, RESPONSES (to one prompt),
# LOGGER, and OUT, the run's folder. They may also set CHECKPOINTS and METRICS (names in OUT), ROLLOUT_TP and MAX_LENGTH.
#
# Folders and files in the variables count from the user's folder; in hydra overrides, they count from the repository's.
#
#   OVERLAY=FILE      a file with an array EXTRA of overrides for another kind of machine, such as cpu/overlay.sh
#   DRY_RUN=1         print the resolved configuration, and stop

OVERLAY=${OVERLAY:-}
for name in TRAIN_FILES VAL_FILES OUT OVERLAY; do # other folders and nodes must understand them
    case ${!name} in '' | /* | *://*) ;; *) printf -v "$name" %s "$PWD/${!name}" ;; esac
done
[ ! -e "$MODEL_PATH" ] || MODEL_PATH=$(realpath "$MODEL_PATH")
cd "$(dirname "${BASH_SOURCE[0]}")/.." # verl and Ray import from here: a folder "trl" would be taken for the package

# The inner quotes are for hydra, which would interpret "=" or a space in a path.
SETTINGS=(
    data.train_files="'$TRAIN_FILES'"
    data.val_files="'$VAL_FILES'"
    data.train_batch_size="$PROMPTS"
    data.max_prompt_length="$MAX_PROMPT"
    data.max_response_length="$MAX_RESPONSE"
    data.seed="$SEED"
    actor_rollout_ref.model.path="'$MODEL_PATH'"
    actor_rollout_ref.rollout.n="$RESPONSES"
    actor_rollout_ref.rollout.seed="$SEED"
    actor_rollout_ref.rollout.tensor_model_parallel_size="${ROLLOUT_TP:-1}"
    actor_rollout_ref.rollout.max_model_len="${MAX_LENGTH:-$((MAX_PROMPT + MAX_RESPONSE))}"
    reward.custom_reward_function.path=pkg://cw_plugin.lab.rewards
    reward.custom_reward_function.name=compute_score
    trainer.project_name="$PROJECT"
    trainer.experiment_name="'$NAME'"
    trainer.logger="$LOGGER"
    trainer.total_training_steps="$STEPS" # the run ends after these
    trainer.total_epochs="$EPOCHS"
    trainer.save_freq="$SAVE_FREQ"
    trainer.test_freq="$TEST_FREQ"
    # Everything that cw-grpo report reads lies in one folder.
    trainer.default_local_dir="'$OUT${CHECKPOINTS:+/$CHECKPOINTS}'"
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH="'$OUT/${METRICS:-metrics.jsonl}'"
    +ray_kwargs.ray_init.runtime_env.env_vars.TENSORBOARD_DIR="'$OUT/tensorboard'"
    trainer.validation_data_dir="'$OUT/validation'"
    hydra.run.dir="'$OUT/hydra'"
)

# use_method: add the settings of METHOD=cw_grpo|grpo|clip_cov. The paper's three rows differ only in these.
use_method() {
    case $METHOD in
        cw_grpo | grpo) SETTINGS+=(algorithm.adv_estimator="$METHOD") ;;
        clip_cov) SETTINGS+=(
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
}

# start OVERRIDE...: run verl's main_ppo in place of this shell; later overrides win.
#
# launch.py locks OUT, resumes its run, refuses other settings, and ends all processes of the run when it ends. If OUT is
# remote (scheme://), launch.py is not used.
start() {
    local main=(python3 -m verl.trainer.main_ppo)
    EXTRA=()
    if [ -n "$OVERLAY" ]; then
        # shellcheck source=/dev/null
        source "$OVERLAY"
    fi
    set -- "${SETTINGS[@]}" "${EXTRA[@]}" "$@"
    [ -z "${DRY_RUN:-}" ] || exec python3 -m cw_plugin config "$@"
    python3 -m cw_plugin doctor --quick "$@"
    case $OUT in *://*) exec "${main[@]}" "$@" ;; esac
    exec python3 examples/launcher/launch.py "$OUT" "${main[@]}" "$@"
}
