"""``trainer.v1.trainer_mode=cw_grpo_evaluation``: verl's own validation of several files, one after the other.

``cw-grpo evaluate`` starts verl with it once for each model. verl_plugin.py imports this module after verl's trainers.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from cw_plugin.lab.evaluation import TRAINER_MODE


@register_trainer(TRAINER_MODE)
class ValidationTrainer(PPOTrainerSync):
    """verl's synchronous trainer, whose validation asks each benchmark by itself.

    ``evaluation.benchmarks`` in the configuration maps a name to ``file`` (questions, in parquet), ``dump`` (the folder
    in which verl writes the graded answers), ``answers`` (how many there must be) and ``result`` (the file that the
    answers become at once if they are whole, so that a kill during the next benchmark does not lose them).
    """

    def __init__(self, config: DictConfig) -> None:
        config.trainer.v1.trainer_mode = "sync"  # our name has chosen this class; verl's code asks for its own
        super().__init__(config)

    def _validate(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for name, benchmark in self.config.evaluation.benchmarks.items():
            self.config.data.val_files = benchmark.file
            self.config.trainer.validation_data_dir = benchmark.dump
            self._init_dataloader()
            for key, value in super()._validate().items():
                metrics[f"{name}/{key}"] = value
            self._shutdown_dump_executor()  # waits until the answers are written
            self._init_dump_executor()
            dump = Path(benchmark.dump, "0.jsonl")
            if dump.read_bytes().count(b"\n") == benchmark.answers:
                dump.replace(benchmark.result)
        return metrics
