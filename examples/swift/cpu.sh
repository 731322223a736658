# An overlay with which paper.sh runs on CPU cores:
#
#   OVERLAY=examples/swift/cpu.sh MODEL_PATH=examples/cpu/model DATA_DIR=.cache/quickstart bash examples/swift/paper.sh \
#       --model_type qwen2 --template qwen2_5 --max_completion_length 64 --max_steps 2
#
# NPROC is the number of processes. The command names the template, because ms-swift does not know this model.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
LAUNCH=(python -m torch.distributed.run --standalone --nproc_per_node "${NPROC:-1}" -m swift.cli.rlhf)
MACHINE=(
    --per_device_train_batch_size 12
    --gradient_accumulation_steps "$((12 / ${NPROC:-1}))"
    --torch_dtype float32
    --use_cpu true
    --bf16 false
    --use_vllm false
    --gradient_checkpointing false
)
