"""The reward of the paper as an environment of skyrl-gym: 1 for a right answer, 1 for well-formed think tags.

This module is SkyRL's own program, which knows this environment, too. With the method::

    python -m cw_plugin.hosts.skyrl cw_plugin.lab.rewards.skyrl ... environment.env_class=cw_grpo

The data are what ``cw-grpo prepare`` writes. A program of your own calls :func:`register` in the process that
generates.
"""

import sys
from collections.abc import Mapping
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import compute_score

NAME = "cw_grpo"  # of the environment


class MathEnv(BaseTextEnv):
    """One question, one answer. SkyRL logs ``environment/acc`` and ``environment/format``.

    Args:
        extras: the columns of a row besides its prompt. ``reward_model`` (or ``reward_spec``, as SkyRL's own data have
            it) is a mapping with the final answer as ``ground_truth``; ``data_source`` is optional.
        options: of :func:`cw_plugin.lab.rewards.compute_score`.

    Raises:
        DataError: the row has no final answer.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        row = dict(extras or {})
        truth = row.get("reward_model") or row.get("reward_spec")
        if not isinstance(truth, Mapping) or "ground_truth" not in truth:
            raise DataError(f"a row has no reward_model with a ground_truth, but {sorted(row)}; see cw-grpo prepare")
        self._truth, self._source, self._options = truth["ground_truth"], row.get("data_source") or "", options
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the response, which ends the episode."""
        result = compute_score(self._source, action, self._truth, **self._options)
        self._metrics = {name: float(result[name]) for name in ("acc", "format")}
        return BaseTextEnvStepOutput(observations=[], reward=float(result["score"]), done=True, metadata={})

    def get_metrics(self) -> dict[str, float]:
        """What SkyRL logs of the episode: acc and format."""
        return self._metrics


def register(**options: Any) -> None:
    """Register the environment ``cw_grpo`` in this process, unless it is there.

    Args:
        **options: of :func:`cw_plugin.lab.rewards.compute_score`, such as ``model_path`` or ``format_weight``.
    """
    if NAME not in skyrl_gym.registry:
        skyrl_gym.register(NAME, "cw_plugin.lab.rewards.skyrl:MathEnv", options)


def main() -> None:
    """Train with SkyRL and this reward. The arguments are those of skyrl.train.entrypoints.main_base."""
    import ray
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.utils import initialize_ray, validate_cfg

    @ray.remote(num_cpus=1)
    def train(cfg: SkyRLTrainConfig) -> None:
        register(model_path=cfg.trainer.policy.model.path)  # in the trainer's process, which generates
        BasePPOExp(cfg).run()

    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(train.remote(cfg))


if __name__ == "__main__":
    main()
