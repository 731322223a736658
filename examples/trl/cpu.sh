# An overlay with which paper.sh runs on CPU cores:
#
#   OVERLAY=examples/trl/cpu.sh MODEL_PATH=examples/cpu/model DATA_DIR=.cache/quickstart bash examples/trl/paper.sh \
#       --max_completion_length 64 --max_steps 2
#
# NPROC is the number of processes.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
# Not `accelerate launch --cpu`: it starts one process, whatever --num_processes says.
export ACCELERATE_USE_CPU=true
LAUNCH=(python -m torch.distributed.run --standalone --nproc_per_node "${NPROC:-1}")
EXTRA=(--use_cpu true --bf16 false --use_vllm false --gradient_checkpointing false --model_init_kwargs '{"dtype": "float32"}')
