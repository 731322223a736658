"""A run in verl's trainer: an estimator's advantages, GRPO's by default, are multiplied by the weights before the loss.

verl has three trainers. All compute advantages by a function of their module, to which they do not pass themselves::

    V1        PPOTrainer._compute_advantage                -> compute_advantage_for_multi_trajectories -> advantages
    legacy    RayPPOTrainer.fit                            -> compute_advantage                        -> advantages
                                                           -> compute_data_metrics                     -> metrics
    separate  SeparateRayPPOTrainer._fit_compute_advantage -> compute_advantage                        -> advantages

The last one is that of one_step_off_policy and fully_async_policy, whose batches have whole prompt groups, too.

:func:`follow` makes the run stand between the two. While the trainer's method runs, its module's function is
:meth:`VerlRun.compute_advantages` of this run, which calls verl's function for the advantages. So verl's own rules
apply, such as V1's for sessions of several outputs.

The trainers compute entropies with the old log-probs. V1 keeps them in its transfer queue; the others drop them, so
that the run keeps what their ``_compute_old_log_prob`` returns, if the weighting needs them.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from verl import DataProto

from cw_plugin.batch import Batch, Tokenizer, group_numbers, of_responses
from cw_plugin.errors import HostError, NonFiniteError
from cw_plugin.hosts.host import VERL
from cw_plugin.hosts.verl import LATEST
from cw_plugin.hosts.verl.needs import OLD_LOG_PROB
from cw_plugin.hosts.verl.refused_settings import read_options, weighted_estimator
from cw_plugin.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

# agent-lightning's trainer calls it by default: the rows of a rollout, such as an agent's turns, share an advantage.
OF_ROLLOUTS = "compute_rollout_level_advantage"
LOGGER = logging.getLogger("verl.cw_plugin")  # in the trainer's process, the root logger shows only errors


class Trainer(Protocol):
    """What is used of verl's trainers. The legacy one has neither of the methods for advantages; each other has one."""

    config: "DictConfig"
    tokenizer: Tokenizer
    global_steps: int  # counted from 1
    fit: Callable[[], object]
    _compute_old_log_prob: Callable[[DataProto], Sequence[DataProto]]
    _compute_advantage: Callable[[object, dict[str, object]], object]  # of V1
    _fit_compute_advantage: Callable[[DataProto], object]  # of the asynchronous programs
    metrics: dict[str, object]  # of their step


def follow(trainer: Trainer) -> None:
    """Make the run of a trainer of verl that uses cw_grpo, and put it in the way of its advantages.

    Args:
        trainer: V1's or the legacy one, at the end of its constructor; the third one before it makes its workers.

    Raises:
        OptionsError: the run's folder has checkpoints of another method.
        HostError: the trainer computes advantages in another way.
    """
    run = VerlRun(trainer)
    if hasattr(trainer, "_compute_advantage"):
        _follow_v1(trainer, run)
        return
    if hasattr(trainer, "_fit_compute_advantage"):
        _follow_separate(trainer, run)
    else:
        _follow_legacy(trainer, run)
    if run.weighting.needs_entropies:
        VERL.require(OLD_LOG_PROB)
        trainer._compute_old_log_prob = functools.partial(run.compute_old_log_prob, trainer._compute_old_log_prob)


def _follow_v1(trainer: Trainer, run: "VerlRun") -> None:
    of_verl = trainer._compute_advantage

    @functools.wraps(of_verl)
    def compute_advantage(batch: object, metrics: dict[str, object]) -> object:
        with _replaced(of_verl, compute_advantage_for_multi_trajectories=run.compute_advantages):
            batch = of_verl(batch, metrics)
        metrics.update(run.metrics)  # verl's logger gets these
        return batch

    trainer._compute_advantage = compute_advantage


def _follow_legacy(trainer: Trainer, run: "VerlRun") -> None:
    of_verl = trainer.fit
    replacements: dict[str, Callable[..., object]] = {
        "compute_advantage": run.compute_advantages,
        "compute_data_metrics": run.compute_metrics,
    }
    if hasattr(sys.modules[of_verl.__module__], OF_ROLLOUTS):
        replacements[OF_ROLLOUTS] = run.compute_rollout_advantages

    @functools.wraps(of_verl)
    def fit() -> object:
        with _replaced(of_verl, **replacements):
            return of_verl()

    trainer.fit = fit


def _follow_separate(trainer: Trainer, run: "VerlRun") -> None:
    of_verl = trainer._fit_compute_advantage

    @functools.wraps(of_verl)
    def compute_advantage(batch: DataProto) -> object:
        with _replaced(of_verl, compute_advantage=run.compute_advantages):
            batch = of_verl(batch)
        trainer.metrics.update(run.metrics)  # those of the step
        return batch

    trainer._fit_compute_advantage = compute_advantage


@contextmanager
def _replaced(method: Callable[..., object], **replacements: Callable[..., object]) -> Iterator[None]:
    """For the time of a ``with`` block, a method calls other functions than verl's, which get verl's as first argument.

    A trainer that derives from verl's may have the method in a module of its own, which has imported the functions.
    """
    module = sys.modules[method.__module__]
    missing = [name for name in replacements if not hasattr(module, name)]
    if missing:
        problem = f"{module.__name__} has no {missing[0]}, so its trainer would not train on the weights"
        raise HostError(problem, fix=f"start verl.trainer.main_ppo of verl {VERL.tested}")
    of_verl = {name: getattr(module, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(module, name, functools.partial(replacement, of_verl[name]))
    try:
        yield
    finally:
        for name, function in of_verl.items():
            setattr(module, name, function)


class VerlRun(Run):
    """One training run of verl that uses cw_grpo."""

    def __init__(self, trainer: Trainer) -> None:
        config = trainer.config
        folder = Path(config.trainer.default_local_dir)
        super().__init__(read_options(config.algorithm), folder, LOGGER)
        self._trainer = trainer
        self._estimator = weighted_estimator(config.algorithm)
        self.metrics: dict[str, float] = {}  # of the last batch
        self._entropies: Tensor | None = None  # of the legacy trainer's last batch
        self.begin(folder, (folder / LATEST).exists(), _resumed_from(config))

    def compute_old_log_prob(
        self, of_verl: Callable[[DataProto], Sequence[DataProto]], batch: DataProto
    ) -> Sequence[DataProto]:
        """What the legacy trainer's function returns, whose entropies are kept until advantages are computed."""
        result = of_verl(batch)
        self._entropies = result[0].batch["entropys"]
        return result

    def compute_advantages(self, of_verl: Callable[..., DataProto], *args: object, **kwargs: object) -> DataProto:
        """Put w~ A into a batch, whose A are those of verl's estimator, and keep the metrics.

        Args:
            of_verl: the function of verl that this one stands for.
            *args, **kwargs: its arguments, among them ``data``, the step's batch. V1's has ``batch_keys``, which are
                "{uid}_{session}_{output}" for each row.

        Returns:
            ``data``, with ``advantages`` and ``returns``.
        """
        arguments = inspect.signature(of_verl).bind(*args, **kwargs).arguments
        data: DataProto = arguments["data"]
        rewards = data.batch["token_level_rewards"].sum(-1)
        # Each response gets one number. So verl's function gets one column, the total reward of each response,
        # and returns one column of advantages, without (rows, time) tensors.
        column = DataProto.from_dict(
            tensors={"token_level_rewards": rewards[:, None], "response_mask": torch.ones_like(rewards)[:, None]},
            non_tensors={"uid": data.non_tensor_batch["uid"]},
        )
        of_estimator = of_verl(**{**arguments, "data": column, "adv_estimator": self._estimator})
        self._put_weights(data, of_estimator.batch["advantages"][:, 0], arguments.get("batch_keys"))
        return data

    def compute_rollout_advantages(
        self, of_agent_lightning: Callable[..., tuple[DataProto, object]], batch: DataProto, **settings: object
    ) -> tuple[DataProto, object]:
        """As :meth:`compute_advantages`, for agent-lightning: a group has all rows of all rollouts of a prompt."""
        batch, metrics = of_agent_lightning(batch, **{**settings, "adv_estimator": self._estimator})
        self._put_weights(batch, of_responses(batch.batch["advantages"], batch.batch["response_mask"]), keys=None)
        return batch, metrics

    def _put_weights(self, data: DataProto, advantages: Tensor, keys: Sequence[str] | None) -> None:
        """Put w~ A into a batch of verl, given A of each row, and keep the metrics."""
        mask = data.batch["response_mask"]
        batch = Batch(
            log_probs=data.batch["old_log_probs"],
            advantages=advantages,
            response_mask=mask,
            group=group_numbers(data.non_tensor_batch["uid"]),
            rewards=data.batch["token_level_rewards"].sum(-1),
            read_sequences=functools.partial(_read_sequences, data, keys),
            tokenizer=self._trainer.tokenizer,
            entropies=self._take_entropies(keys) if self.weighting.needs_entropies else None,
        )
        try:
            reweighted = self.reweight(batch, self._trainer.global_steps)
        except NonFiniteError as error:
            raise error.named("uids", data.non_tensor_batch["uid"]) from error
        self.metrics = reweighted.metrics
        weighted = reweighted.advantages
        if weighted is None:  # weights=none, plain GRPO
            weighted = advantages[:, None] * (mask != 0)
        data.batch["advantages"] = data.batch["returns"] = weighted

    def _take_entropies(self, keys: Sequence[str] | None) -> Tensor:
        """The entropies (rows, time) of the batch, in nats."""
        if keys is None:
            entropies, self._entropies = self._entropies, None
            if entropies is None:
                raise HostError(
                    "this trainer computes advantages without calling _compute_old_log_prob, so there are no entropies",
                    fix="choose a weighting that needs none, such as gaussian or ar",
                )
            return entropies
        return _read_queue(keys, "entropy")["entropy"].to_padded_tensor(0.0)

    def compute_metrics(
        self, of_verl: Callable[..., dict[str, object]], *args: object, **kwargs: object
    ) -> dict[str, object]:
        """The metrics of a step's batch: those of verl, and those of the weights."""
        return {**of_verl(*args, **kwargs), **self.metrics}


def _resumed_from(config: "DictConfig") -> Path | None:
    """The folder of the checkpoint that a run names with resume_from_path."""
    path = config.trainer.get("resume_from_path")
    if config.trainer.get("resume_mode") != "resume_path" or not path:
        return None
    return Path(path).resolve().parent


def _read_sequences(data: DataProto, keys: Sequence[str] | None, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and response for some rows. Those of V1's batch lie in verl's transfer queue."""
    if keys is not None:
        columns = _read_queue([keys[row] for row in rows], "prompts", "responses")
        return list(zip(columns["prompts"].unbind(), columns["responses"].unbind(), strict=True))
    return [(data.batch["prompts"][row], data.batch["responses"][row]) for row in rows]


def _read_queue(keys: Sequence[str], *fields: str) -> Mapping[str, Tensor]:
    """Fields of some rows of V1's batch, each a nested tensor, from verl's transfer queue."""
    import transfer_queue

    columns: Mapping[str, Tensor] = transfer_queue.kv_batch_get(
        keys=list(keys), partition_id="train", select_fields=list(fields)
    )
    return columns
