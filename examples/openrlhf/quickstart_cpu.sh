#!/usr/bin/env bash
# Trains CW-GRPO with OpenRLHF on a machine without a GPU. OpenRLHF's own train_ppo_ray (Ray, DeepSpeed, a vLLM engine)
# trains the model of ../quickstart_cpu.sh, with the same problems and reward.
#
#   bash examples/openrlhf/quickstart_cpu.sh [any argument of train_ppo_ray, such as --actor.adam.lr 3e-4]
#
#   METHOD   cw_grpo | grpo                default cw_grpo
#   STEPS    training steps, 64 at most    default 10
#   NGPUS    actors                        default 1
#   SEED     for data order and sampling   default 1
#   RUN      where the run is written      default runs/openrlhf-$METHOD (SEED=2: runs/openrlhf-$METHOD-seed2); the same
#            command resumes from the run's last checkpoint
#   VENV     the environment               default .venv-openrlhf, made by the first call (cpu/install.sh)
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/examples/weights.sh"
STEPS=${STEPS:-10}
NGPUS=${NGPUS:-1}
OUT=$(realpath -m "${RUN:-$root/runs/openrlhf-$METHOD${SEED:+-seed$SEED}}")
SEED=${SEED:-1}
VENV=$(realpath -m "${VENV:-$root/.venv-openrlhf}")
data=$(realpath -m "${QUICKSTART_DATA:-$root/.cache/quickstart}")/open_rs
MODEL_PATH=$root/examples/cpu/model
TRAIN_FILE=$data/train.parquet
source "$here/common.sh"

bash "$here/cpu/install.sh" "$VENV"
export PATH=$VENV/bin:$PATH
bash "$root/examples/cpu/data.sh"
claim "$OUT"
SETTINGS=(
    --actor.num_gpus_per_node "$NGPUS"
    --actor.adam.lr 1e-4
    --actor.lr_scheduler constant
    --actor.lr_warmup_ratio 0
    --algo.kl.init_coef 0
    --ckpt.save_steps 5
    --ckpt.max_num 1
    --data.max_samples "$((8 * STEPS))"
    --data.max_len 256
    --ds.attn_implementation sdpa
    --eval.dataset "$data/test.parquet"
    --eval.steps "$STEPS"
    --eval.temperature 1
    --eval.n_samples_per_prompt 2
    --rollout.batch_size 8
    --rollout.n_samples_per_prompt 8
    --rollout.micro_batch_size 8
    --rollout.max_new_tokens 64
    --train.batch_size 64
    --train.micro_batch_size 8
    --train.seed "$SEED"
    --vllm.num_engines 1
    --vllm.enforce_eager
    --vllm.gpu_memory_utilization 0.3
)
export PYTHONPATH=$root:$here/cpu${PYTHONPATH:+:$PYTHONPATH} # what OpenRLHF needs on a CPU: cpu/sitecustomize.py
export OPENRLHF_CPU_GPUS=$((NGPUS + 1)) CW_GRPO_RECORD_EVERY=${CW_GRPO_RECORD_EVERY:-$STEPS} HF_HUB_OFFLINE=1
echo "METHOD=$METHOD, $STEPS steps, in $OUT; everything that is printed goes to $OUT/train.log"
cd "$root"
python -m cw_plugin.hosts.openrlhf "${COMMON[@]}" "${SETTINGS[@]}" "$@" 2>&1 | tee -a "$OUT/train.log" |
    sed -nu "s/.*Global step \([0-9]*\): .*'reward': \([0-9.]*\).*/step \1  reward \2/p; s/^cw_grpo: .*/&/p" || {
    tail -n 20 "$OUT/train.log" >&2
    exit 1
}
cw-grpo report "$METHOD=$OUT" --out "$OUT/report" >"$OUT/report.log"
python "$root/examples/cpu/summary.py" "$OUT"
