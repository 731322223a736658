"""CW-GRPO for Axolotl: ``plugins: [cw_grpo.CWGRPOPlugin]``, with this folder on PYTHONPATH."""

from axolotl.core.trainers.grpo.trainer import AxolotlAsyncGRPOTrainer, AxolotlGRPOTrainer
from axolotl.integrations.base import BasePlugin

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts.host import TRL, Need
from cw_plugin.hosts.trl import CWGRPOTrainer

# As in TRL's own loss (cw_plugin/hosts/trl/needs.py): it tells one advantage per response from one per token.
LOSS = Need(
    "axolotl.core.trainers.grpo.async_trainer",
    "AsyncGRPOTrainer._compute_loss",
    ("inputs",),
    line="if advantages.dim() == 1:",
)


class AxolotlCWGRPOTrainer(CWGRPOTrainer, AxolotlGRPOTrainer):
    """Axolotl's GRPO trainer, whose advantages are multiplied by the weights."""


class AxolotlProducerCWGRPOTrainer(CWGRPOTrainer, AxolotlAsyncGRPOTrainer):
    """Axolotl's trainer with a data producer, whose advantages are multiplied by the weights."""

    def __init__(self, *args, **kwargs):
        TRL.require(LOSS)
        super().__init__(*args, **kwargs)


class CWGRPOPlugin(BasePlugin):
    """Names the trainer, and refuses settings and plugins with which another one would compute the advantages."""

    def register(self, cfg):
        """Name the trainer in a configuration that Axolotl has not read yet, or raise an OptionsError."""
        trl = cfg.get("trl") or {}
        if cfg.get("rl") not in ("grpo", "gdpo"):
            raise OptionsError(f"rl={cfg.get('rl')!r} is not supported by CW-GRPO", fix="set it to grpo")
        for name, value, supported in (
            ("trainer_cls", cfg.get("trainer_cls"), None),
            ("context_parallel_size", cfg.get("context_parallel_size"), 1),
            # A batch that is generated in the background, or by agents, gets its advantages elsewhere.
            ("trl.async_prefetch", trl.get("async_prefetch"), False),
            ("nemo_gym_multi_turn", cfg.get("nemo_gym_multi_turn"), False),
        ):
            if value not in (None, supported):
                raise OptionsError(f"{name}={value!r} is not supported by CW-GRPO", fix="remove it")
        kind = AxolotlProducerCWGRPOTrainer if trl.get("use_data_producer") else AxolotlCWGRPOTrainer
        cfg["trainer_cls"] = f"{kind.__module__}.{kind.__name__}"

    def post_trainer_create(self, cfg, trainer):
        """Raise a HostError for another plugin's trainer, which Axolotl prefers to ``trainer_cls``."""
        if not isinstance(trainer, CWGRPOTrainer):
            raise HostError(
                f"another plugin has chosen {type(trainer).__name__}, which would train without the weights",
                fix="remove the plugin whose get_trainer_cls names it",
            )
