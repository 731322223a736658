"""What this package changes in verl: two registered names, the hooks in :data:`HOOKS`, and what trainer.py replaces.

A hook wraps one function of verl, right after verl imports its module. verl's function always runs, unchanged. The
function that runs around it says what the hook does, why, and which change of verl would remove it. For the time that
a trainer of a run with cw_grpo computes advantages, trainer.py also replaces functions of its module, which it puts
back in a ``finally``. With weights that need entropies, it wraps _compute_old_log_prob of the legacy and the separate
trainer, which drop the entropies.

All of this does nothing if verl has its own cw_grpo, or if the run does not use cw_grpo. If verl lacks a
function that is needed, :func:`require_hooks` refuses to train with cw_grpo, and the estimator refuses to run without
log-probs.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from cw_plugin.hosts.host import VERL, Need
from cw_plugin.hosts.verl import NAME, needs
from cw_plugin.hosts.verl.refused_settings import check_config, uses_estimator, uses_loss, uses_separate, uses_v1

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger("cw_plugin")

Proceed = Callable[[], object]  # calls verl's function, with the arguments that it was called with
Arguments = Mapping[str, Any]  # these, by name


def _begin_run(proceed: Proceed, arguments: Arguments) -> object:
    """Puts the weights in the way of the trainer's advantages, and checks its configuration once more.

    Why: an estimator gets neither log-probs nor the step, has no way to report a metric, and not every program that
    starts a trainer calls validate_config. Removed by: estimators that get log-probs (verl's #7473) and return metrics.
    """
    from cw_plugin.hosts.verl.trainer import follow

    config = arguments["config"]
    _check(config)
    result = proceed()
    if uses_estimator(config) and not uses_separate(config):
        follow(arguments["self"])
    return result


def _begin_separate_run(proceed: Proceed, arguments: Arguments) -> object:
    """Does the same for one_step_off_policy and fully_async_policy, when their trainer begins to make workers.

    Why: their constructors do not call that of RayPPOTrainer, and this is the first method that they have from their
    common base class. Removed by: constructors that call that of RayPPOTrainer.
    """
    from cw_plugin.hosts.verl.trainer import follow

    trainer = arguments["self"]
    _check(trainer.config)
    if uses_estimator(trainer.config):
        follow(trainer)
    return proceed()


def _check_before_start(proceed: Proceed, arguments: Arguments) -> object:
    """Checks the cw_grpo settings, and that the hooks are in place, before Ray or a worker starts.

    Why: neither estimator nor loss sees the whole configuration, so neither can refuse to reweight twice. Removed by:
    checks in verl, once cw_grpo is part of it.
    """
    result = proceed()
    _check(arguments["config"])
    return result


def _check_before_ray(proceed: Proceed, arguments: Arguments) -> object:
    """Checks the cw_grpo settings of programs that start their own trainers with main_ppo's run_ppo.

    Why: fully_async_policy never calls validate_config, so that its settings would be refused only once Ray and a
    trainer run. Removed by: a fully_async_policy that calls validate_config.
    """
    check_config(arguments["config"])
    return proceed()


def _check(config: "DictConfig") -> None:
    """Raise an error if a run uses cw_grpo, and its settings or this verl cannot work."""
    check_config(config)
    if uses_estimator(config) or uses_loss(config):
        require_hooks(config)


# The hooked functions of verl, with the parameters that the hooks rely on, and what runs in the place of each.
HOOKS: dict[Need, Callable[[Proceed, Arguments], object]] = {
    needs.BEGIN_V1: _begin_run,
    needs.BEGIN_LEGACY: _begin_run,
    needs.BEGIN_SEPARATE: _begin_separate_run,
    needs.VALIDATE: _check_before_start,
    needs.RUN_PPO: _check_before_ray,
}

_CORE_ALGOS = "verl.trainer.ppo.core_algos"
_MARK = "_cw_plugin_hook"  # on a function that was put in place of verl's: its name there


@functools.cache
def install_when_imported() -> None:
    """Fill verl's registries and install the hooks, each when its module is imported, or now if it already is."""
    wrapt.register_post_import_hook(_register_names, _CORE_ALGOS)
    for function in HOOKS:
        wrapt.register_post_import_hook(functools.partial(_install, function), function.module)


def _register_names(core_algos: ModuleType) -> None:
    """Add the estimator and the loss to verl's registries, unless the names are taken.

    Beside an estimator of verl's own, nothing would refuse the loss and the estimator together. So then the
    loss is left out.
    """
    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage
    from cw_plugin.hosts.verl.loss import compute_policy_loss_cw_grpo

    has_estimator = _warn_if_taken(core_algos.ADV_ESTIMATOR_REGISTRY, compute_cw_grpo_advantage)
    has_loss = _warn_if_taken(core_algos.POLICY_LOSS_REGISTRY, compute_policy_loss_cw_grpo)
    if not has_estimator:
        core_algos.register_adv_est(NAME)(compute_cw_grpo_advantage)
    if not has_estimator and not has_loss:
        core_algos.register_policy_loss(NAME)(compute_policy_loss_cw_grpo)


def _warn_if_taken(registry: Mapping[str, object], function: Callable[..., object]) -> bool:
    """Whether a registry has another cw_grpo than this function; if so, the log says what that means."""
    registered = registry.get(NAME, function)
    if registered is function:
        return False
    logger.warning(
        "cw_plugin: %s is already registered (%r) and used as it is, without cw_plugin's options and metrics",
        NAME,
        registered,
    )
    return True


def verl_has_its_own() -> bool:
    """Whether verl will run another cw_grpo than this package's, to which its options and checks do not apply."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

    return ADV_ESTIMATOR_REGISTRY.get(NAME, compute_cw_grpo_advantage) is not compute_cw_grpo_advantage


def _install(need: Need, module: ModuleType) -> None:
    if need.lacks():
        return  # require_hooks says so, if the run needs it
    owner, name, function = wrapt.resolve_path(module, need.name)
    signature = inspect.signature(function)

    # Up to verl 0.8, Ray pickles a TaskRunner with all that it calls. Pickle writes a plain function as its module and
    # name, under which the other process has hooked its own. A wrapt proxy cannot be pickled.
    @functools.wraps(function)
    def hooked(*args: object, **kwargs: object) -> object:
        if verl_has_its_own():
            return function(*args, **kwargs)
        by_name = signature.bind(*args, **kwargs).arguments
        return HOOKS[need](lambda: function(*args, **kwargs), by_name)

    setattr(hooked, _MARK, need.name)
    setattr(owner, name, hooked)


def require_hooks(config: "DictConfig") -> None:
    """Raise HostError unless all that a configuration of verl needs is there, and hooked in this process."""
    of_trainer: tuple[Need, ...] = needs.NEEDS_OF_LEGACY
    if uses_separate(config):
        of_trainer = needs.NEEDS_OF_SEPARATE
    elif uses_v1(config):
        of_trainer = needs.NEEDS_OF_V1
    VERL.require(*of_trainer)
    for need in of_trainer:
        function = wrapt.resolve_path(need.module, need.name)[2]
        if need in HOOKS and getattr(function, _MARK, None) != need.name:  # functools.wraps and wrapt pass it on
            raise VERL.misfit(f"{need.module}.{need.name} is not hooked in this process")
