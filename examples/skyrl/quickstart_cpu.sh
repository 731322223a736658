#!/usr/bin/env bash
# Trains CW-GRPO with SkyRL on a machine without a GPU. SkyRL's own trainer (Ray, FSDP2 workers, a vLLM server behind its
# router) trains the model of ../quickstart_cpu.sh, with the same problems and reward.
#
#   bash examples/skyrl/quickstart_cpu.sh [any setting of SkyRL, such as trainer.policy.optimizer_config.lr=3e-4]
#
#   METHOD   cw_grpo | grpo                default cw_grpo
#   STEPS    training steps, 64 at most    default 10
#   NGPUS    policy workers                default 1
#   SEED     for data order and sampling   default 1
#   RUN      where the run is written      default runs/skyrl-$METHOD (SEED=2: runs/skyrl-$METHOD-seed2); the same
#            command resumes from the run's last checkpoint
#   VENV     the environment               default .venv-skyrl, made by the first call (cpu/install.sh)
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/examples/weights.sh"
STEPS=${STEPS:-10}
NGPUS=${NGPUS:-1}
OUT=$(realpath -m "${RUN:-$root/runs/skyrl-$METHOD${SEED:+-seed$SEED}}")
SEED=${SEED:-1}
VENV=$(realpath -m "${VENV:-$root/.venv-skyrl}")
data=$(realpath -m "${QUICKSTART_DATA:-$root/.cache/quickstart}")/open_rs
MODEL_PATH=$root/examples/cpu/model
TRAIN_FILE=$data/train.parquet
source "$here/common.sh"

bash "$here/cpu/install.sh" "$VENV"
export PATH=$VENV/bin:$PATH
bash "$root/examples/cpu/data.sh"
claim "$OUT"
SETTINGS=(
    data.val_data="['$data/test.parquet']"
    data.dataloader.num_workers=0
    trainer.placement.colocate_all=false
    trainer.placement.policy_num_gpus_per_node="$NGPUS"
    trainer.flash_attn=false
    trainer.remove_microbatch_padding=false
    trainer.gradient_checkpointing=false
    trainer.enable_ray_gpu_monitor=false
    trainer.policy.optimizer_config.lr=1e-4
    trainer.algorithm.use_kl_loss=false
    trainer.train_batch_size=8
    trainer.policy_mini_batch_size=8
    trainer.micro_train_batch_size_per_gpu=8
    trainer.micro_forward_batch_size_per_gpu=32
    trainer.max_prompt_length=192
    trainer.max_training_steps="$STEPS"
    trainer.eval_interval="$STEPS"
    trainer.ckpt_interval=5
    trainer.max_ckpts_to_keep=1
    trainer.seed="$SEED"
    trainer.print_example_interval=0
    generator.n_samples_per_prompt=8
    generator.eval_n_samples_per_prompt=2
    generator.sampling_params.max_generate_length=64
    generator.eval_sampling_params.temperature=1.0
    generator.eval_sampling_params.max_generate_length=64
    generator.inference_engine.num_engines=1
    generator.inference_engine.distributed_executor_backend=mp
    generator.inference_engine.enable_ray_prometheus_stats=false
    generator.inference_engine.enforce_eager=true
    generator.inference_engine.engine_init_kwargs.worker_cls=vllm.v1.worker.cpu_worker.CPUWorker # SkyRL names the GPU's
    generator.inference_engine.max_num_seqs=64
    generator.inference_engine.max_num_batched_tokens=2048
)
export PYTHONPATH=$root:$here/cpu${PYTHONPATH:+:$PYTHONPATH} # what SkyRL needs on a CPU: cpu/sitecustomize.py
export SKYRL_CPU_GPUS=$((NGPUS + 1)) CW_GRPO_RECORD_EVERY=${CW_GRPO_RECORD_EVERY:-$STEPS} HF_HUB_OFFLINE=1
echo "METHOD=$METHOD, $STEPS steps, in $OUT; everything that is printed goes to $OUT/train.log"
cd "$root"
python -m "${PROGRAM[@]}" "${COMMON[@]}" "${SETTINGS[@]}" "$@" >>"$OUT/train.log" 2>&1 || {
    tail -n 20 "$OUT/train.log" >&2
    exit 1
}
cw-grpo report "$METHOD=$OUT" --out "$OUT/report" >"$OUT/report.log"
python "$root/examples/cpu/summary.py" "$OUT"
