#!/usr/bin/env bash
# Trains CW-GRPO on a machine without a GPU. verl's own main_ppo (V1 trainer, Ray, TransferQueue, FSDP2, a vLLM server)
# trains a small model on arithmetic.
#
#   bash examples/quickstart_cpu.sh [any hydra override of verl]
#
#   METHOD   cw_grpo | grpo | clip_cov     default cw_grpo
#   STEPS    training steps                default 20; more steps extend a finished run
#   NGPUS    FSDP ranks                    default 1
#   SEED     for data order and sampling   default 1
#   RUN      where the run is written      default runs/quickstart-$METHOD (SEED=2: runs/quickstart-$METHOD-seed2); the
#            same command resumes the run; with other settings, name another folder
#   PYTHON   the interpreter to build on   default python3 (3.10, 3.11 or 3.12)
#   DRY_RUN  1: print the configuration of the run, and stop; needs the environment of an earlier call
set -euo pipefail
source "${0%"${0##*/}"}./supervised.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
METHOD=${METHOD:-cw_grpo}
PROJECT=quickstart
NAME=$METHOD
STEPS=${STEPS:-20}
EPOCHS=1000
SAVE_FREQ=5
TEST_FREQ=$STEPS
LOGGER='["console","file","tensorboard"]'
OUT=${RUN:-$root/runs/quickstart-$METHOD${SEED:+-seed$SEED}}
CHECKPOINTS=checkpoints
SEED=${SEED:-1}
venv=$(realpath -ms "${VENV:-$root/.venv}")

QUICKSTART_DATA=$(realpath -ms "${QUICKSTART_DATA:-$root/.cache/quickstart}")
export QUICKSTART_DATA
TRAIN_FILES=$QUICKSTART_DATA/open_rs/train.parquet
VAL_FILES=$QUICKSTART_DATA/open_rs/test.parquet
MODEL_PATH=${MODEL_PATH:-$root/examples/cpu/model}
PROMPTS=16
RESPONSES=8
MAX_PROMPT=192
MAX_RESPONSE=64

OVERLAY=$root/examples/cpu/overlay.sh
source "$root/examples/verl.sh"
use_method
# The authors' ratio of 0.0002 would select no token of so few.
[ "$METHOD" != clip_cov ] || SETTINGS+=(actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.01)
# The tokens of the first and of the last step, so that there is something to compare.
[[ $METHOD != cw_grpo || $* == *record_every* ]] || SETTINGS+=(+algorithm.cw_grpo.record_every="$STEPS")
SETTINGS+=(
    actor_rollout_ref.actor.optim.lr=2e-4
    actor_rollout_ref.actor.ppo_mini_batch_size=16
    actor_rollout_ref.actor.use_dynamic_bsz=True # micro-batches by tokens fit any batch and number of ranks
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.rollout.max_num_seqs=64
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.n=4
    # This model's chat template decides whether a response must open its think section itself.
    "+reward.custom_reward_function.reward_kwargs.model_path='$MODEL_PATH'"
    trainer.max_actor_ckpt_to_keep=1
    trainer.val_before_train=True
)

[ -n "${DRY_RUN:-}" ] || bash "$root/examples/cpu/install.sh" "$venv"
export PATH=$venv/bin:$PATH
[ -z "${DRY_RUN:-}" ] || start "$@"
bash "$root/examples/cpu/data.sh"
(start "$@")
cw-grpo report "$OUT" --out "$OUT/report" >"$OUT/report.log"
python "$root/examples/cpu/summary.py" "$OUT"
