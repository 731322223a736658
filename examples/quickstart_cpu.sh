#!/usr/bin/env bash
# CW-GRPO on a machine without a GPU: verl's own main_ppo (V1 trainer, Ray, TransferQueue, FSDP2, a vLLM server) trains
# a small model on arithmetic.
#
#   bash examples/quickstart_cpu.sh [any hydra override of verl]
#
#   METHOD   cw_grpo | grpo | clip_cov     default cw_grpo
#   STEPS    training steps                default 10; a finished run goes on with more
#   NGPUS    FSDP ranks                    default 1
#   SEED     of data order and sampling    default 1
#   RUN      where the run is written      default runs/quickstart-$METHOD (SEED=2: runs/quickstart-$METHOD-seed2); the
#            same command goes on with the run that is there, another is told to name another folder
#   PYTHON   the interpreter to build on   default python3 (3.10, 3.11 or 3.12)
#   DRY_RUN  1: print the configuration of the run, and stop; needs the environment of an earlier call
set -euo pipefail

METHOD=${METHOD:-cw_grpo}
STEPS=${STEPS:-10}
NGPUS=${NGPUS:-1}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RUN=${RUN:-$root/runs/quickstart-$METHOD${SEED:+-seed$SEED}}
SEED=${SEED:-1}
venv=${VENV:-$root/.venv}
data=${QUICKSTART_DATA:-$root/.cache/quickstart}

case $METHOD in
    cw_grpo)
        ALGORITHM=(algorithm.adv_estimator=cw_grpo)
        # The tokens of the first and of the last step, so that there is something to compare.
        [[ $* == *record_every* ]] || ALGORITHM+=(+algorithm.cw_grpo.record_every="$STEPS")
        ;;
    grpo) ALGORITHM=(algorithm.adv_estimator=grpo) ;;
    # The authors' settings (PPO's own clipping almost off); their ratio of 0.0002 would select no token of so few.
    clip_cov) ALGORITHM=(algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov
        actor_rollout_ref.actor.clip_ratio_low=1 actor_rollout_ref.actor.clip_ratio_high=1
        actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.01) ;;
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo, grpo or clip_cov" >&2
        exit 2
        ;;
esac

[ -n "${DRY_RUN:-}" ] || bash "$root/examples/cpu/install.sh" "$venv"
export PATH=$venv/bin:$PATH

case $RUN in /*) ;; *) RUN=$PWD/$RUN ;; esac
MODEL_PATH=${MODEL_PATH:-$root/examples/cpu/model}
[ ! -e "$MODEL_PATH" ] || MODEL_PATH=$(realpath "$MODEL_PATH")
cd "$root" # verl and Ray import from where they are started, and a folder "trl" there would be taken for the package
# The inner quotes are for hydra, which would interpret "=" or a space in a path.
DATA=(
    data.train_files="'$data/open_rs/train.parquet'"
    data.val_files="'$data/open_rs/test.parquet'"
    data.train_batch_size=8
    data.seed="$SEED"
    data.max_prompt_length=192
    data.max_response_length=64
)
MODEL=(
    actor_rollout_ref.model.path="'$MODEL_PATH'"
)
ACTOR=(
    actor_rollout_ref.actor.optim.lr=1e-4
    actor_rollout_ref.actor.ppo_mini_batch_size=8
    actor_rollout_ref.actor.use_dynamic_bsz=True # micro-batches by tokens fit any batch and number of ranks
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    actor_rollout_ref.actor.use_kl_loss=False
)
ROLLOUT=(
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.seed="$SEED"
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.max_num_seqs=64
    actor_rollout_ref.rollout.max_model_len=256
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.n=2
)
REWARD=(
    reward.custom_reward_function.path=pkg://cw_plugin.rewards
    reward.custom_reward_function.name=compute_score
    # This model's chat template decides whether a response must open its think section itself.
    "+reward.custom_reward_function.reward_kwargs.model_path='$MODEL_PATH'"
)
TRAINER=(
    trainer.project_name=quickstart
    trainer.experiment_name="$METHOD"
    'trainer.logger=["console","file","tensorboard"]'
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH="'$RUN/metrics.jsonl'"
    +ray_kwargs.ray_init.runtime_env.env_vars.TENSORBOARD_DIR="'$RUN/tensorboard'"
    trainer.default_local_dir="'$RUN/checkpoints'"
    trainer.validation_data_dir="'$RUN/validation'"
    trainer.total_training_steps="$STEPS"
    trainer.total_epochs=1000
    trainer.save_freq=5
    trainer.max_actor_ckpt_to_keep=1
    trainer.test_freq="$STEPS"
    trainer.val_before_train=True
    hydra.run.dir="'$RUN/hydra'"
)

source "$root/examples/cpu/overlay.sh"
set -- "${ALGORITHM[@]}" "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${REWARD[@]}" "${TRAINER[@]}" \
    "${EXTRA[@]}" "$@"
if [ -n "${DRY_RUN:-}" ]; then
    exec python3 -m cw_plugin config "$@"
fi
bash "$root/examples/cpu/data.sh"
python3 -m cw_plugin doctor --quick "$@"

echo "METHOD=$METHOD, $STEPS steps, in $RUN"
python "$root/examples/launcher/launch.py" "$RUN" python -m verl.trainer.main_ppo "$@"
cw-grpo report "$RUN" --out "$RUN/report" >"$RUN/report.log"
python "$root/examples/cpu/summary.py" "$RUN"
echo "The run goes on with a larger STEPS: the same command with STEPS=$((2 * STEPS))."
