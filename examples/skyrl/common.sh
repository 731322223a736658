# paper.sh and quickstart_cpu.sh share this. They set METHOD, MODEL_PATH, TRAIN_FILE and OUT, the run's folder, first.

export_weights
export TENSORBOARD_DIR=$OUT/tensorboard

PROGRAM=(cw_plugin.hosts.skyrl cw_plugin.lab.rewards.skyrl)
COMMON=(
    trainer.strategy=fsdp
    trainer.policy.model.path="$MODEL_PATH"
    trainer.algorithm.advantage_estimator=grpo
    trainer.algorithm.loss_reduction=sequence_mean
    data.train_data="['$TRAIN_FILE']"
    environment.env_class=cw_grpo
    generator.batched=true
    trainer.export_path="$OUT"
    trainer.ckpt_path="$OUT/checkpoints"
    trainer.log_path="$OUT/log"
    trainer.logger=tensorboard
    trainer.resume_mode=latest
)
