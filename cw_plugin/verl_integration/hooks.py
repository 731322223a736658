"""Every change this package makes to verl, in one list: :data:`HOOKS`.

verl's registries take the estimator and the loss. Around them verl 0.9.1 leaves gaps, and each hook closes one. A hook
is a wrapt wrapper, installed right after verl has imported the module concerned; the wrapped function always runs,
unchanged. ``HOOKS`` says for each what it does, why, and which change of verl removes it.

Where verl itself has registered cw_grpo (patches/), this package leaves it alone: none of its hooks then acts.

When verl does not have the place a hook needs, nothing is guessed: the problem is said once on stderr, training with
cw_grpo is refused by :func:`require_hooks`, and the estimator itself refuses to run without log-probs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from cw_plugin.errors import HostError
from cw_plugin.verl_integration import NAME

logger = logging.getLogger("cw_plugin")


@dataclass(frozen=True)
class Hook:
    """One wrapped function of verl.

    Attributes:
        module: the module in whose namespace the function is replaced.
        function: its name there, dotted for a method.
        needs: parameters that the wrapper relies on.
        wrapper: a wrapt wrapper ``(wrapped, instance, args, kwargs)``.
        what, why, removed_by: for the reader.
    """

    module: str
    function: str
    needs: tuple[str, ...]
    wrapper: Callable[..., Any]
    what: str
    why: str
    removed_by: str

    @property
    def target(self) -> str:
        return f"{self.module}.{self.function}"


def _supply_log_probs(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
    from cw_plugin.verl_integration.estimator import TrainerContext, trainer_context

    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    if call["adv_estimator"] != NAME:
        return wrapped(*args, **kwargs)
    context = trainer_context.get() or TrainerContext()
    context.old_log_probs = call["data"].batch.get("old_log_probs", None)
    context.batch_keys = call["batch_keys"]
    token = trainer_context.set(context)
    try:
        return wrapped(*args, **kwargs)
    finally:
        trainer_context.reset(token)


def _log_estimator_metrics(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
    from cw_plugin.verl_integration.estimator import TrainerContext, trainer_context
    from cw_plugin.verl_integration.options import check_config
    from cw_plugin.verl_integration.recording import write_record

    if instance.config.algorithm.adv_estimator != NAME:
        return wrapped(*args, **kwargs)
    check_config(instance.config)  # again here, for programs that start the trainer without verl's validate_config
    context = TrainerContext(step=instance.global_steps)
    token = trainer_context.set(context)
    try:
        result = wrapped(*args, **kwargs)
    finally:
        trainer_context.reset(token)
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    call["metrics"].update(context.metrics)
    if context.recorder is not None:
        write_record(instance, call["batch"], context.recorder)
    return result


def _log_loss_metrics(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
    from cw_plugin.verl_integration.recording import follow_entropy

    result = wrapped(*args, **kwargs)
    metrics = inspect.signature(wrapped).bind(*args, **kwargs).arguments["metrics"]
    for key in [key for key in metrics if key.startswith(f"actor/{NAME}/")]:
        metrics[key.removeprefix("actor/")] = metrics.pop(key)
    follow_entropy(instance, metrics)
    return result


def _check_config(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
    from cw_plugin.verl_integration.options import check_config

    result = wrapped(*args, **kwargs)
    config = inspect.signature(wrapped).bind(*args, **kwargs).arguments["config"]
    check_config(config)
    if config.algorithm.adv_estimator == NAME:
        require_hooks()
    return result


_TRAINER = "verl.trainer.ppo.v1.trainer_base"

HOOKS = (
    Hook(
        module=_TRAINER,
        function="compute_advantage_for_multi_trajectories",
        needs=("data", "batch_keys", "adv_estimator"),
        wrapper=_supply_log_probs,
        what="remembers old_log_probs and the rows' session keys while verl computes advantages with cw_grpo",
        why="compute_advantage passes an estimator rewards, mask and uids, but no log-probs, and applies the rule for "
        "sessions of several outputs to grpo alone",
        removed_by="a verl that passes old_log_probs or the batch to registered estimators (its pull request 7473) and "
        "scores sessions for every outcome estimator; until this hook goes, the estimator prefers what verl passes",
    ),
    Hook(
        module=_TRAINER,
        function="PPOTrainer._compute_advantage",
        needs=("batch", "metrics"),
        wrapper=_log_estimator_metrics,
        what="adds the estimator's metrics to the step's metrics, and writes the covariance distribution when due",
        why="an estimator returns advantages and returns, and has no way to report a metric",
        removed_by="a verl whose estimators may return metrics",
    ),
    Hook(
        module=_TRAINER,
        function="PPOTrainer._update_actor",
        needs=("metrics",),
        wrapper=_log_loss_metrics,
        what="renames actor/cw_grpo/* to cw_grpo/*, and adds the entropy's change and forecast",
        why="verl puts actor/ before every metric of a policy loss; estimator and loss should be read in one place. "
        "After the update, entropy, covariance and learning rate of a step stand together",
        removed_by="nothing planned; it is a convenience",
    ),
    Hook(
        module="verl.utils.config",
        function="validate_config",
        needs=("config",),
        wrapper=_check_config,
        what="checks the cw_grpo settings, and that the hooks above are in place, before Ray starts",
        why="neither estimator nor loss sees the whole configuration, so neither can refuse to weigh twice",
        removed_by="a check of verl's own, once cw_grpo is part of verl",
    ),
)

# Filled while hooks are installed: what this verl lacks, in words.
problems: list[str] = []


def _installed(hook: Hook, module: ModuleType) -> bool:
    """Whether the hook's wrapper takes part in what verl will call; others may have wrapped the function as well."""
    try:
        function: Any = wrapt.resolve_path(module, hook.function)[2]
    except AttributeError:
        return False
    while function is not None:
        if getattr(function, "_self_wrapper", None) is hook.wrapper:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _cw_grpo_is_ours() -> bool:
    from cw_plugin.verl_integration.options import verl_has_its_own

    return not verl_has_its_own()


def _install(hook: Hook, module: ModuleType) -> None:
    if _installed(hook, module):
        return
    try:
        function = wrapt.resolve_path(module, hook.function)[2]
        lacking = sorted(set(hook.needs) - set(inspect.signature(function).parameters))
    except AttributeError:
        lacking = ["function"]
    if lacking:
        problems.append(f"{hook.target} has no {' or '.join(lacking)}")
        logger.error("cw_plugin does not fit this verl, and cw_grpo will be refused: %s", problems[-1])
        return
    wrapt.wrap_object(module, hook.function, wrapt.FunctionWrapper, (hook.wrapper, _cw_grpo_is_ours))


def _register_estimator_and_loss(core_algos: ModuleType) -> None:
    from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage
    from cw_plugin.verl_integration.loss import compute_policy_loss_cw_grpo

    for registry, add, function in (
        (core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.register_adv_est, compute_cw_grpo_advantage),
        (core_algos.POLICY_LOSS_REGISTRY, core_algos.register_policy_loss, compute_policy_loss_cw_grpo),
    ):
        if registry.get(NAME, function) is not function:
            logger.warning(
                "cw_plugin: %s is already registered (%r) and used as it is, without cw_plugin's options and metrics",
                NAME, registry[NAME],
            )  # fmt: skip
        else:
            add(NAME)(function)


@functools.cache
def install_when_imported() -> None:
    """Fill verl's registries and install the hooks, each when (or if already) its module is imported."""
    wrapt.register_post_import_hook(_register_estimator_and_loss, "verl.trainer.ppo.core_algos")
    for hook in HOOKS:
        wrapt.register_post_import_hook(functools.partial(_install, hook), hook.module)


def require_hooks() -> None:
    """Raise unless every hook is in place in this process.

    Raises:
        HostError: with what this verl lacks.
    """
    import verl

    absent = []
    for hook in HOOKS:
        try:
            module = importlib.import_module(hook.module)
        except ModuleNotFoundError as error:
            if not hook.module.startswith(str(error.name)):
                raise  # the module is there, and lacks a package of its own
            absent.append(f"there is no {hook.module}")
        else:
            if not _installed(hook, module):
                absent.append(hook.target)
    if absent:
        raise HostError(
            f"cw_plugin does not fit verl {verl.__version__}: {'; '.join(problems) or ', '.join(absent)}. "
            "Install a verl version that cw_plugin supports (0.9.1), or a cw_plugin that supports this one"
        )
