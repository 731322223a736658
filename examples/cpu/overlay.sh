# Makes any verl run train on CPU cores. It sets EXTRA, an array of overrides. Add them after the run's own:
#
#   source examples/cpu/overlay.sh
#   python -m verl.trainer.main_ppo "${SETTINGS[@]}" "${EXTRA[@]}" "$@"
#
# The recipes source it themselves: OVERLAY=examples/cpu/overlay.sh bash examples/run_r1_distill_qwen_1_5b_fsdp.sh
# NGPUS is the number of ranks. The overlay reads the run's own overrides from the arrays SETTINGS and BACKEND and from
# "$@". If none of them sets the number of vLLM's ranks, it is one.
NGPUS=${NGPUS:-1}

export VERL_PLATFORM=cpu            # turns on verl_cpu in every process
export TOKENIZERS_PARALLELISM=false # the tokenizer is used in forked workers
export HYDRA_FULL_ERROR=1
export TORCHDYNAMO_DISABLE=1 # compiling takes longer than it saves
# A dozen processes share the cores: threads that wait for each other would spin.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
export TQ_NUM_THREADS=${TQ_NUM_THREADS:-1} # TransferQueue wants 8, and warns with every tensor where there are fewer cores

EXTRA=(
    trainer.device=cpu
    trainer.nnodes=1
    trainer.n_gpus_per_node="$NGPUS"
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cpu # for a cluster that was started without it
    # One small process of each kind instead of eight.
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    data.dataloader_num_workers=0
    reward.num_workers=1
    actor_rollout_ref.rollout.agent.num_workers=1
    # There is no flash attention.
    actor_rollout_ref.model.use_remove_padding=False
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    # vLLM without compilation, CUDA graphs and sleep mode, which free what a GPU shares with training.
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.dtype=float32
    actor_rollout_ref.rollout.enforce_eager=True
    actor_rollout_ref.rollout.free_cache_engine=False
    +actor_rollout_ref.rollout.enable_sleep_mode=False
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config={cudagraph_mode: NONE}"
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64
)
# vLLM's one rank computes in the engine's own process, which saves the start of another. It is named by its class, because
# vLLM's CPU platform takes "mp" for the name "uni": it cannot set OpenMP's variables in a process that already runs. They
# are set above. Removed by: vLLM accepting "uni" where OMP_NUM_THREADS is set.
ranks=1
[[ "${SETTINGS[*]:-} $*" =~ .*rollout\.tensor_model_parallel_size=([0-9]+) ]] && ranks=${BASH_REMATCH[1]} # the last one
[ "$ranks" != 1 ] || EXTRA+=(
    +actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=vllm.v1.executor.uniproc_executor.UniProcExecutor
)
if [[ " ${BACKEND[*]:-} " == *" model_engine=megatron "* ]]; then
    # mbridge, whose patches are fewer than Megatron-Bridge's. verl's Megatron engine trains in half precision alone.
    export CUDA_DEVICE_MAX_CONNECTIONS=1
    EXTRA+=(
        actor_rollout_ref.actor.megatron.vanilla_mbridge=True
        actor_rollout_ref.ref.megatron.vanilla_mbridge=True
        # The reference model takes these from the actor.
        +actor_rollout_ref.actor.megatron.override_transformer_config.sequence_parallel=False
        +actor_rollout_ref.actor.megatron.override_transformer_config.masked_softmax_fusion=False
    )
else
    # FSDP2 in float32: FSDP1 does not start on a CPU.
    EXTRA+=(actor_rollout_ref.actor.strategy=fsdp2)
    for role in actor ref; do
        EXTRA+=(
            actor_rollout_ref.$role.fsdp_config.strategy=fsdp2
            actor_rollout_ref.$role.fsdp_config.use_torch_compile=False
            "+actor_rollout_ref.$role.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32}" # else bf16
        )
    done
fi
# The run starts its own Ray; else it would join the cluster that "ray start" noted in /tmp/ray/ray_current_cluster.
# This Ray counts cores as GPUs, and has enough logical CPUs to start every process on two cores.
# A running cluster (RAY_ADDRESS) must have been started with these numbers: ray start --head --num-gpus=2 --num-cpus=16
if [ -z "${RAY_ADDRESS:-}" ]; then
    EXTRA+=(
        +ray_kwargs.ray_init.address=local
        +ray_kwargs.ray_init.num_gpus="$NGPUS"
        ray_kwargs.ray_init.num_cpus=16
        +ray_kwargs.ray_init.include_dashboard=False
    )
fi
