# paper.sh and quickstart_cpu.sh share this. They set root, METHOD, MODEL_PATH, TRAIN_FILE and OUT, the run's folder, first.

export_weights

COMMON=(
    --actor.model_name_or_path "$MODEL_PATH"
    --actor.num_nodes 1
    --actor.loss_agg_mode seq-mean-token-mean
    --actor.entropy_coef 0 # no bonus, but its metric
    --algo.advantage.estimator group_norm
    --data.prompt_dataset "$TRAIN_FILE"
    --data.input_key prompt
    --data.label_key reward_model
    --data.apply_chat_template
    --reward.remote_url "$root/cw_plugin/lab/rewards/openrlhf.py"
    --ckpt.output_dir "$OUT"
    --ckpt.path "$OUT/checkpoints"
    --ckpt.load_enable
    --logger.tensorboard_dir "$OUT/tensorboard"
    --logger.wandb.run_name train # the folder in tensorboard/, the same when a run goes on
)
