"""CW-GRPO for Axolotl: ``trainer_cls: cw_grpo.AxolotlCWGRPOTrainer``, with this folder on PYTHONPATH."""

from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

from cw_plugin.hosts.trl import CWGRPOTrainer


class AxolotlCWGRPOTrainer(CWGRPOTrainer, AxolotlGRPOTrainer):
    """Axolotl's GRPO trainer, whose advantages are multiplied by the paper's weights."""
