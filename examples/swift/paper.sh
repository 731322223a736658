#!/usr/bin/env bash
# Runs the paper's experiment with ms-swift 4.6.0, on one node with four GPUs. ../paper.md says where each value comes from.
#
#   METHOD=cw_grpo|grpo bash examples/swift/paper.sh [any argument of swift rlhf, such as --beta 0]
#
#   MODEL_PATH     default deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
#   MAX_PROMPT     tokens, default 512
#   MAX_RESPONSE   tokens, default 4096; use 3584 for Qwen/Qwen2.5-Math-7B-Instruct, which has 4096 positions for both
#   DATA_DIR       default ~/data/cw_grpo, made by: cw-grpo prepare open-rs
#   OUT            default RUNS_DIR/swift/MODEL-METHOD; a run in this folder resumes from its last checkpoint
#   RUNS_DIR       default checkpoints, in the current folder; a run needs 114 GB with the 1.5B model, 487 GB with the 7B
#   OVERLAY        a file with the arrays LAUNCH and MACHINE for another kind of machine, such as cpu.sh
#   DRY_RUN=1      print the arguments, one per line, and stop
#
# It needs: pip install ".[swift,data,report]" deepspeed vllm
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../recipe.sh" swift
export_weights

EXPERIMENT=(
    --rlhf_type grpo
    --external_plugins "$here/plugin.py" "$here/rewards.py"
    --reward_funcs cw_accuracy cw_format
    --reward_weights 1 1
    --model "$MODEL_PATH"
    --use_hf true
    --tuner_type full
    --dataset "$DATA_DIR/open_rs/train.parquet"
    --columns '{"prompt": "messages"}'
    --split_dataset_ratio 0
    --max_length "$MAX_PROMPT"
    --truncation_strategy delete # if a prompt is longer, another problem takes its place
    --max_completion_length "$MAX_RESPONSE"
    --num_generations 12
    --max_steps 200
    --learning_rate 1e-6
    --lr_scheduler_type cosine_with_min_lr
    --lr_scheduler_kwargs '{"min_lr_rate": 0.1}'
    --warmup_ratio 0.1
    --weight_decay 0
    --adam_beta1 0.9
    --adam_beta2 0.999
    --max_grad_norm 1.0
    --temperature 0.7
    --top_p 1.0
    --loss_type grpo
    --scale_rewards group
    --beta 0.04
    --epsilon 0.2
    --num_iterations 1
    --seed 42
    --data_seed 42
    --output_dir "$OUT"
    --add_version false
    --save_steps 50
    --logging_steps 1
    --log_entropy true
    --report_to none
)
LAUNCH=(env NPROC_PER_NODE=4 swift rlhf)
MACHINE=( # every GPU trains and generates, by turns: 4 responses x 4 GPUs x 9 = 144 responses in a step
    --per_device_train_batch_size 4
    --gradient_accumulation_steps 9
    --torch_dtype bfloat16
    --deepspeed zero2
    --use_vllm true
    --vllm_mode colocate
    --vllm_gpu_memory_utilization 0.4
    --vllm_max_model_len "$((MAX_PROMPT + MAX_RESPONSE))"
    --sleep_level 1
)
if [ -n "${OVERLAY:-}" ]; then
    # shellcheck source=/dev/null
    source "$OVERLAY"
fi
set -- "${EXPERIMENT[@]}" "${MACHINE[@]}" "$@"
if [ -n "${DRY_RUN:-}" ]; then
    printf '%s\n' "$@"
    exit
fi
# max_steps ARGUMENT...: the value of the last --max_steps; not above 0 in a run that is counted in epochs.
max_steps() {
    local steps=0
    while [ $# -gt 0 ]; do
        case $1 in
            --max_steps) steps=${2:-0} ;;
            --max_steps=*) steps=${1#*=} ;;
        esac
        shift
    done
    echo "$steps"
}

claim "$OUT"
# A checkpoint is complete once it has this file. OUT may be a link to a folder.
last=$(find "$OUT/" -mindepth 2 -maxdepth 2 -path '*/checkpoint-*/trainer_state.json' | sort -V | tail -n 1)
if [ -n "$last" ]; then
    checkpoint=$(dirname "$last")
    steps=$(max_steps "$@")
    if [ "$steps" -gt 0 ] && [ "${checkpoint##*-}" -ge "$steps" ]; then # transformers would train one more
        echo "$OUT is at its last step, $steps: nothing is left to train."
        exit
    fi
    set -- "$@" --resume_from_checkpoint "$checkpoint"
fi
exec "${LAUNCH[@]}" "$@"
