# paper.sh of trl/, swift/, openrlhf/ and skyrl/ source this file with the name of their folder. It reads the variables that
# the first comment of each names.
source "$(dirname "${BASH_SOURCE[0]}")/weights.sh"
MODEL_PATH=${MODEL_PATH:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
MAX_PROMPT=${MAX_PROMPT:-512}
MAX_RESPONSE=${MAX_RESPONSE:-4096}
DATA_DIR=${DATA_DIR:-$HOME/data/cw_grpo}
OUT=${OUT:-${RUNS_DIR:-checkpoints}/$1/$(basename "$MODEL_PATH")-$METHOD}
