"""The reward of the paper as an environment of skyrl-gym: 1 for a right answer, 1 for well-formed think tags.

Usage::

    environment.env_class=cw_grpo

:class:`cw_plugin.hosts.skyrl.CWGRPOTrainer` registers it. The data are what ``cw-grpo prepare`` writes. A program
without that trainer, or with other options, registers it in the process that generates::

    skyrl_gym.register("cw_grpo", "cw_plugin.lab.rewards.skyrl:MathEnv", {"model_path": ..., "format_weight": 0.5})
"""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from cw_plugin.errors import DataError
from cw_plugin.lab.rewards import compute_score


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
