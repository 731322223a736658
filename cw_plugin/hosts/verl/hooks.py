"""Every change this package makes to verl, in two lists: :data:`REGISTRATIONS` and :data:`HOOKS`.

A registration adds a name of ours to a registry of verl: the estimator and the loss. A hook wraps one function of verl,
right after verl imports its module. verl's function always runs, unchanged. The function that runs around it says what
the hook does, why, and which change of verl would remove it.

For the time that a trainer of a run with cw_grpo computes advantages, run.py replaces one or two functions of the
trainer's module (:func:`cw_plugin.hosts.verl.run.follow`).

The hooks do nothing if verl has its own cw_grpo (patches/), or if the run does not use cw_grpo. If verl lacks a
function that is needed, :func:`require_hooks` refuses to train with cw_grpo, and the estimator refuses to run without
log-probs.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from cw_plugin.hosts.host import VERL, Need
from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import check_config, uses_estimator, uses_loss, uses_v1

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger("cw_plugin")


@dataclass
class Call:
    """One call of a hooked function of verl, which has not been made yet."""

    function: Callable[..., object]
    bound: inspect.BoundArguments

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return self.bound.arguments

    def proceed(self) -> object:
        """Make the call."""
        return self.function(*self.bound.args, **self.bound.kwargs)


@dataclass(frozen=True)
class Hook:
    """One hooked function of verl.

    Attributes:
        module: the module in whose namespace the function is replaced.
        function: its name there, dotted for a method.
        parameters: those that the hook relies on.
        around: what runs in place of the function. It gets the call, and returns the result.
    """

    module: str
    function: str
    parameters: tuple[str, ...]
    around: Callable[[Call], object]

    @property
    def target(self) -> str:
        """Module and function, by which messages and marks name the hook."""
        return f"{self.module}.{self.function}"

    @property
    def need(self) -> Need:
        """What verl must have for it."""
        return Need(self.module, self.function, self.parameters)


def _begin_run(call: Call) -> object:
    """Puts the weights in the way of the trainer's advantages, and checks its configuration once more.

    Why: an estimator gets neither log-probs nor the step, has no way to report a metric, and not every program that
    starts a trainer calls validate_config. Removed by: estimators that get log-probs and return metrics (part 2 and 3
    of patches/).
    """
    from cw_plugin.hosts.verl.run import follow

    config = call.arguments["config"]
    _check(config)
    result = call.proceed()
    if uses_estimator(config):
        follow(call.arguments["self"])
    return result


def _check_before_start(call: Call) -> object:
    """Checks the cw_grpo settings, and that the hooks are in place, before Ray or a worker starts.

    Why: neither estimator nor loss sees the whole configuration, so neither can refuse to reweight twice. Removed by:
    checks in verl, once cw_grpo is part of it.
    """
    result = call.proceed()
    _check(call.arguments["config"])
    return result


def _check_before_ray(call: Call) -> object:
    """Checks the cw_grpo settings of programs that start their own trainers with main_ppo's run_ppo.

    Why: fully_async_policy never calls validate_config, and its trainer does not call RayPPOTrainer.__init__, so it
    would train with the loss unchecked. Removed by: a fully_async_policy that calls validate_config.
    """
    check_config(call.arguments["config"])
    return call.proceed()


def _check(config: "DictConfig") -> None:
    """Raise an error if a run uses cw_grpo, and its settings or this verl cannot work."""
    check_config(config)
    if uses_estimator(config) or uses_loss(config):
        require_hooks(config)


_V1 = "verl.trainer.ppo.v1.trainer_base"
_LEGACY = "verl.trainer.ppo.ray_trainer"
_VALIDATE = Hook("verl.utils.config", "validate_config", ("config",), _check_before_start)
_BEGIN_V1 = Hook(_V1, "PPOTrainer.__init__", ("self", "config"), _begin_run)
_BEGIN_LEGACY = Hook(_LEGACY, "RayPPOTrainer.__init__", ("self", "config"), _begin_run)
# For programs with trainers of their own, which it refuses.
_RUN_PPO = Hook("verl.trainer.main_ppo", "run_ppo", ("config",), _check_before_ray)
HOOKS = (_BEGIN_V1, _BEGIN_LEGACY, _VALIDATE, _RUN_PPO)

# What run.py replaces while a trainer computes advantages.
_REPLACED_IN_V1 = (
    Need(_V1, "PPOTrainer._compute_advantage", ("self", "batch", "metrics")),
    Need(_V1, "compute_advantage_for_multi_trajectories", ("data", "batch_keys", "adv_estimator")),
)
_REPLACED_IN_LEGACY = (
    Need(_LEGACY, "RayPPOTrainer.fit", ("self",)),
    Need(_LEGACY, "compute_advantage", ("data", "adv_estimator")),
    Need(_LEGACY, "compute_data_metrics", ("batch",)),
)


@dataclass(frozen=True)
class Registration:
    """What this package adds to registries of verl.

    Attributes:
        module: the module of verl that holds the registries.
        register: adds to them; it gets the module, right after verl imports it.
    """

    module: str
    register: Callable[[ModuleType], None]


def _register_estimator(core_algos: ModuleType) -> None:
    """Adds the estimator to verl's registry, unless the name is taken."""
    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

    if not _warn_if_taken(core_algos.ADV_ESTIMATOR_REGISTRY, compute_cw_grpo_advantage):
        core_algos.register_adv_est(NAME)(compute_cw_grpo_advantage)


def _register_loss(core_algos: ModuleType) -> None:
    """Adds the loss to verl's registry, unless the name is taken, or verl has its own estimator.

    Beside that estimator nothing would refuse the two together.
    """
    from cw_plugin.hosts.verl.loss import compute_policy_loss_cw_grpo

    is_taken = _warn_if_taken(core_algos.POLICY_LOSS_REGISTRY, compute_policy_loss_cw_grpo)
    if not is_taken and not verl_has_its_own():
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


_CORE_ALGOS = "verl.trainer.ppo.core_algos"
REGISTRATIONS = (Registration(_CORE_ALGOS, _register_estimator), Registration(_CORE_ALGOS, _register_loss))

_MARK = "_cw_plugin_hook"  # on a function that was put in place of verl's: the hook's target


def verl_has_its_own() -> bool:
    """Whether verl will run another cw_grpo than this package's, to which its options and checks do not apply."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

    return ADV_ESTIMATOR_REGISTRY.get(NAME, compute_cw_grpo_advantage) is not compute_cw_grpo_advantage


@functools.cache
def install_when_imported() -> None:
    """Fill verl's registries and install the hooks, each when its module is imported, or now if it already is."""
    for registration in REGISTRATIONS:
        wrapt.register_post_import_hook(registration.register, registration.module)
    for hook in HOOKS:
        wrapt.register_post_import_hook(functools.partial(_install, hook), hook.module)


def _install(hook: Hook, module: ModuleType) -> None:
    if hook.need.lacks():
        return  # require_hooks says so, if the run needs it
    owner, name, function = wrapt.resolve_path(module, hook.function)
    signature = inspect.signature(function)

    # A plain function of the same name, which is pickled as that name, so that another process finds its own hooked
    # function there: up to verl 0.8, Ray pickles a TaskRunner with all that it calls. A wrapt proxy cannot be pickled.
    @functools.wraps(function)
    def hooked(*args: object, **kwargs: object) -> object:
        if verl_has_its_own():
            return function(*args, **kwargs)
        return hook.around(Call(function, signature.bind(*args, **kwargs)))

    setattr(hooked, _MARK, hook.target)
    setattr(owner, name, hooked)


def _installed(hook: Hook) -> bool:
    """Whether the hook is part of what verl will call. Other packages may have wrapped the function after it."""
    function = wrapt.resolve_path(hook.module, hook.function)[2]
    return getattr(function, _MARK, None) == hook.target  # functools.wraps and wrapt pass attributes on


def require_hooks(config: "DictConfig") -> None:
    """Raise HostError unless all that a configuration of verl needs is there, and hooked in this process."""
    begin, replaced = (_BEGIN_V1, _REPLACED_IN_V1) if uses_v1(config) else (_BEGIN_LEGACY, _REPLACED_IN_LEGACY)
    needed = (begin, _VALIDATE)
    VERL.require(*(hook.need for hook in needed), *replaced)
    for hook in needed:
        if not _installed(hook):
            raise VERL.misfit(f"{hook.target} is not hooked in this process")
