"""SkyRL's program with :class:`CWGRPOTrainer` in place of its trainer."""

import sys

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import initialize_ray, validate_cfg

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.skyrl.refused_settings import check
from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer
from cw_plugin.options import variables


class CWGRPOExp(BasePPOExp):
    """SkyRL's experiment, which trains CW-GRPO."""

    def get_trainer(self, *args: object, **kwargs: object) -> CWGRPOTrainer:
        """The trainer, in place of SkyRL's."""
        return CWGRPOTrainer(*args, **kwargs)


@ray.remote(num_cpus=1)
def train(experiment: type[BasePPOExp], cfg: SkyRLTrainConfig) -> None:
    """Train in a worker of Ray, as SkyRL's own program does."""
    experiment(cfg).run()


def main(experiment: type[BasePPOExp] = CWGRPOExp) -> None:
    """Train with this process's arguments, which are those of skyrl.train.entrypoints.main_base."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("trainer.override_entrypoint=")]
    cfg = SkyRLTrainConfig.from_cli_overrides(arguments)
    try:
        check(cfg)
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")
    validate_cfg(cfg)
    initialize_ray(cfg)
    # The worker may be on another node.
    ray.get(train.options(runtime_env={"env_vars": variables()}).remote(experiment, cfg))
