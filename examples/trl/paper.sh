#!/usr/bin/env bash
# Runs the paper's experiment with TRL, on one node with four GPUs. paper.yaml has its settings.
#
#   METHOD=cw_grpo|grpo bash examples/trl/paper.sh [any flag of TRL's GRPOConfig, such as --beta 0]
#
#   MODEL_PATH     default deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
#   MAX_PROMPT     tokens, default 512
#   MAX_RESPONSE   tokens, default 4096; use 3584 for Qwen/Qwen2.5-Math-7B-Instruct, which has 4096 positions for both
#   DATA_DIR       default ~/data/cw_grpo, made by: cw-grpo prepare open-rs
#   OUT            default RUNS_DIR/trl/MODEL-METHOD; a run in this folder resumes
#   RUNS_DIR       default checkpoints, in the current folder; a run needs 114 GB with the 1.5B model, 487 GB with the 7B
#   SERVER_PORT    the port of trl vllm-serve, default 8000
#   CUDA_VISIBLE_DEVICES   default 0,1,2,3; three GPUs train, and the fourth generates
#   OVERLAY        a file with the arrays LAUNCH and EXTRA for another kind of machine, such as cpu.sh
#   DRY_RUN=1      print the resolved settings, and stop
#
# It needs: pip install ".[trl,data,report]" deepspeed "trl[vllm]"
set -euo pipefail
source "${0%"${0##*/}"}../supervised.sh"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../recipe.sh" trl
SERVER_PORT=${SERVER_PORT:-8000}
is_open() { (: </dev/tcp/localhost/"$SERVER_PORT") 2>/dev/null; }

[ -n "${DRY_RUN:-}" ] || claim "$OUT"
LAUNCH=(accelerate launch --config_file "$here/4_gpus.yaml")
EXTRA=()
if [ -n "${OVERLAY:-}" ]; then
    # shellcheck source=/dev/null
    source "$OVERLAY"
elif [ -z "${DRY_RUN:-}" ]; then
    IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-0,1,2,3}"
    if [ "${#gpus[@]}" -lt 4 ]; then
        echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES has ${#gpus[@]} GPUs, and the recipe needs four" >&2
        exit 2
    fi
    if is_open; then
        echo "something else listens on port $SERVER_PORT; end it, or set SERVER_PORT to a free port" >&2
        exit 2
    fi
    export CUDA_VISIBLE_DEVICES=${gpus[0]},${gpus[1]},${gpus[2]}
    CUDA_VISIBLE_DEVICES=${gpus[3]} trl vllm-serve --model "$MODEL_PATH" --port "$SERVER_PORT" \
        --max_model_len "$((MAX_PROMPT + MAX_RESPONSE))" &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    # The server may have to download the model. TRL waits for 240 seconds, even if the server has ended.
    until is_open; do
        kill -0 $server 2>/dev/null || { echo "trl vllm-serve has ended before training; see above" >&2 && exit 1; }
        sleep 1
    done
fi
if [ -n "${DRY_RUN:-}" ]; then
    echo "${LAUNCH[*]}"
    LAUNCH=(python)
    EXTRA+=(--dry_run true --use_cpu true --bf16 false)
fi
"${LAUNCH[@]}" "$here/train.py" --config "$here/paper.yaml" --model "$MODEL_PATH" \
    --train_file "$DATA_DIR/open_rs/train.parquet" --output_dir "$OUT" --cw_weights "$weights" \
    --max_prompt_length "$MAX_PROMPT" --max_completion_length "$MAX_RESPONSE" --vllm_server_port "$SERVER_PORT" \
    "${EXTRA[@]}" "$@"
