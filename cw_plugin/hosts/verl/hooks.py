"""Every change this package makes to verl, in two lists: :data:`REGISTRATIONS` and :data:`HOOKS`.

A registration adds a name of ours to a registry of verl: the estimator, the loss, and the trainer of ``cw-grpo
evaluate``. Estimator and loss need more than verl passes, and the hooks supply it. A hook wraps one function of verl,
right after verl imports its module. verl's function always runs, unchanged. The function that runs around it says what
the hook does, why, and which change of verl would remove it.

Estimator and loss do not know which trainer calls them. For each trainer, one hook says which run this is, one passes
what advantages are computed from, and one completes the metrics of a step.

The hooks do nothing if verl has its own cw_grpo (patches/), or if the run does not use cw_grpo. If verl lacks a
function that a hook needs, the problem is logged once on stderr, :func:`require_hooks` refuses to train with cw_grpo,
and the estimator refuses to run without log-probs.
"""

import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import wrapt

from cw_plugin.errors import HostError
from cw_plugin.hosts.verl import NAME, TESTED, current_run
from cw_plugin.hosts.verl.accepted_settings import check_config, uses_estimator, uses_loss, uses_v1

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor

logger = logging.getLogger("cw_plugin")


@dataclass
class Call:
    """One call of a hooked function of verl, which has not been made yet."""

    function: Callable[..., object]
    bound: inspect.BoundArguments

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name; a hook may change them."""
        return self.bound.arguments

    def proceed(self) -> object:
        """Make the call with the current arguments."""
        return self.function(*self.bound.args, **self.bound.kwargs)


@dataclass(frozen=True)
class Hook:
    """One hooked function of verl.

    Attributes:
        module: the module in whose namespace the function is replaced.
        function: its name there, dotted for a method.
        needs: parameters that the hook relies on.
        around: what runs in place of the function. It gets the call, and returns the result.
        required_by: the trainers that do not train the method without it.
    """

    module: str
    function: str
    needs: tuple[str, ...]
    around: Callable[[Call], object]
    required_by: tuple[Literal["V1", "legacy"], ...]

    @property
    def target(self) -> str:
        """Module and function, by which messages and marks name the hook."""
        return f"{self.module}.{self.function}"


@dataclass(frozen=True)
class Registration:
    """What this package adds to registries of verl.

    Attributes:
        module: the module of verl that holds the registries.
        register: adds to them; it gets the module, right after verl imports it.
    """

    module: str
    register: Callable[[ModuleType], None]


def _begin_run(call: Call) -> object:
    """Remembers the trainer, for its step and folder, and checks its configuration once more.

    Why: neither an estimator nor a loss is told the step or the whole configuration, and not every program that starts
    a trainer calls validate_config. Removed by: a version of verl that hands the trainer, or its step and
    configuration, to estimators.
    """
    used = _check(call.arguments["config"])
    result = call.proceed()
    current_run.begin(call.arguments["self"] if used else None)
    return result


def _hand_over_batch(call: Call) -> object:
    """Remembers old_log_probs, and under V1 the rows' session keys, while verl computes advantages with cw_grpo.

    Why: compute_advantage passes an estimator rewards, mask and uids, but no log-probs, and V1 applies the rule for
    sessions of several outputs to grpo alone. Removed by: part 2 of patches/, whose verl passes old_log_probs and
    final_index, which the estimator prefers; the weights are then the same without this hook, and it only serves the
    token records.
    """
    from cw_plugin.hosts.verl.estimator import TrainerBatch, batch_of_trainer

    handed_over = batch_of_trainer.get() is not None  # by the hook of V1's function, which calls the legacy one
    if handed_over or call.arguments["adv_estimator"] != NAME:
        return call.proceed()
    if current_run.current() is None:
        raise HostError(
            f"{NAME} does not know the trainer that computes these advantages",
            fix="start verl.trainer.main_ppo, or a trainer that derives from verl's RayPPOTrainer and calls its "
            "__init__",
        )
    batch, keys = call.arguments["data"].batch, call.arguments.get("batch_keys")
    if keys is None:
        sequences = functools.partial(_sequences_in_batch, batch)
    else:
        sequences = functools.partial(_sequences_in_transfer_queue, keys)
    token = batch_of_trainer.set(TrainerBatch(batch.get("old_log_probs", None), keys, sequences))
    try:
        return call.proceed()
    finally:
        batch_of_trainer.reset(token)


def _sequences_in_batch(batch: "Mapping[str, Tensor]", rows: Sequence[int]) -> "Iterable[tuple[Tensor, Tensor]]":
    """Token ids of prompt and response for some rows, of the legacy trainer's batch."""
    return [(batch["prompts"][row], batch["responses"][row]) for row in rows]


def _sequences_in_transfer_queue(keys: Sequence[str], rows: Sequence[int]) -> "Iterable[tuple[Tensor, Tensor]]":
    """The same of the V1 trainer's batch, whose prompts and responses lie in verl's transfer queue."""
    import transfer_queue

    columns = transfer_queue.kv_batch_get(
        keys=[keys[row] for row in rows], partition_id="train", select_fields=["prompts", "responses"]
    )
    return zip(columns["prompts"].unbind(), columns["responses"].unbind(), strict=True)


def _complete_metrics(call: Call) -> object:
    """Adds the estimator's metrics, and renames actor/cw_grpo/* of the loss to cw_grpo/*.

    Why: an estimator returns advantages and returns, and has no way to report a metric; verl puts actor/ before every
    metric of a loss. Removed by: estimators that may return metrics.
    """
    run = current_run.current()
    if run is not None:
        call.arguments["data"] = run.complete(call.arguments["data"])
    return call.proceed()


def _check_before_start(call: Call) -> object:
    """Checks the cw_grpo settings, that the hooks are in place, and the ground truths, before Ray or a worker starts.

    Why: neither estimator nor loss sees the whole configuration, so neither can refuse to reweight twice; and where
    the reward raises an error, verl drops the response. Removed by: checks in verl, once cw_grpo is part of it.
    """
    from cw_plugin.lab.doctor.ground_truths import require_ground_truths

    result = call.proceed()
    if _check(call.arguments["config"]):
        require_ground_truths(call.arguments["config"])
    return result


def _check_before_ray(call: Call) -> object:
    """Checks the cw_grpo settings of programs that start their own trainers with main_ppo's run_ppo.

    Why: fully_async_policy never calls validate_config, and its trainer does not call RayPPOTrainer.__init__, so it
    would train with the loss unchecked. Removed by: a fully_async_policy that calls validate_config.
    """
    check_config(call.arguments["config"])
    return call.proceed()


def _check(config: "DictConfig") -> bool:
    """Whether a run uses cw_grpo; raises if its settings cannot work."""
    check_config(config)
    used = uses_estimator(config) or uses_loss(config)
    if used:
        require_hooks(config)
    return used


_V1 = "verl.trainer.ppo.v1.trainer_base"
_LEGACY = "verl.trainer.ppo.ray_trainer"
HOOKS = (
    Hook(_V1, "PPOTrainer.__init__", ("self", "config"), _begin_run, ("V1",)),
    Hook(_LEGACY, "RayPPOTrainer.__init__", ("self", "config"), _begin_run, ("legacy",)),
    Hook(
        _V1,
        "compute_advantage_for_multi_trajectories",
        ("data", "batch_keys", "adv_estimator"),
        _hand_over_batch,
        ("V1",),
    ),
    Hook(_LEGACY, "compute_advantage", ("data", "adv_estimator"), _hand_over_batch, ("legacy",)),
    Hook("verl.utils.tracking", "Tracking.log", ("data",), _complete_metrics, ("V1", "legacy")),
    Hook("verl.utils.config", "validate_config", ("config",), _check_before_start, ("V1", "legacy")),
    # For programs with trainers of their own, which it refuses.
    Hook("verl.trainer.main_ppo", "run_ppo", ("config",), _check_before_ray, ()),
)


def _register_estimator(core_algos: ModuleType) -> None:
    """Adds the estimator to verl's registry, unless the name is taken."""
    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

    register = core_algos.register_adv_est
    if "fields" in inspect.signature(register).parameters:  # part 2 of patches/
        register = functools.partial(register, fields=["old_log_probs", "final_index"])
    if not _warn_if_taken(core_algos.ADV_ESTIMATOR_REGISTRY, compute_cw_grpo_advantage):
        register(NAME)(compute_cw_grpo_advantage)


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


def _register_trainer(_: ModuleType) -> None:
    """Adds the trainer of ``cw-grpo evaluate``, whose module registers it."""
    importlib.import_module("cw_plugin.lab.evaluation.benchmark_trainer")


_CORE_ALGOS = "verl.trainer.ppo.core_algos"
REGISTRATIONS = (
    Registration(_CORE_ALGOS, _register_estimator),
    Registration(_CORE_ALGOS, _register_loss),
    Registration("verl.trainer.ppo.v1.trainer_sync", _register_trainer),
)

_MARK = "_cw_plugin_hook"  # on a function that was put in place of verl's: the hook's target


def hooks_of(config: "DictConfig") -> list[Hook]:
    """The hooks that a run with this configuration of verl needs."""
    trainer = "V1" if uses_v1(config) else "legacy"
    return [hook for hook in HOOKS if trainer in hook.required_by]


def verl_has_its_own() -> bool:
    """Whether verl will run another cw_grpo than this package's, to which its options and checks do not apply."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

    return ADV_ESTIMATOR_REGISTRY.get(NAME, compute_cw_grpo_advantage) is not compute_cw_grpo_advantage


def _installed(hook: Hook, module: ModuleType) -> bool:
    """Whether the hook is part of what verl will call. Other packages may have wrapped the function too."""
    try:
        function: Any = wrapt.resolve_path(module, hook.function)[2]
    except AttributeError:
        return False
    while function is not None and getattr(function, _MARK, None) != hook.target:
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _problem(hook: Hook, module: ModuleType) -> str:
    """What this version of verl lacks for a hook, in words; empty if nothing."""
    try:
        function = wrapt.resolve_path(module, hook.function)[2]
    except AttributeError:
        return f"there is no {hook.target}"
    missing = sorted(set(hook.needs) - set(inspect.signature(function).parameters))
    return f"{hook.target} has no {' or '.join(missing)}" if missing else ""


def _install(hook: Hook, module: ModuleType) -> None:
    if _installed(hook, module):
        return
    problem = _problem(hook, module)
    if problem:
        logger.error("cw_plugin does not fit this version of verl, and cw_grpo will be refused: %s", problem)
        return
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


@functools.cache
def install_when_imported() -> None:
    """Fill verl's registries and install the hooks, each when its module is imported, or now if it already is."""
    for registration in REGISTRATIONS:
        wrapt.register_post_import_hook(registration.register, registration.module)
    for hook in HOOKS:
        wrapt.register_post_import_hook(functools.partial(_install, hook), hook.module)


def require_hooks(config: "DictConfig") -> None:
    """Raise HostError unless every hook that a configuration of verl needs is in place in this process."""
    import verl

    problems = [problem for hook in hooks_of(config) if (problem := _why_absent(hook))]
    if problems:
        raise HostError(
            f"cw_plugin does not fit verl {verl.__version__}: {'; '.join(problems)}. "
            f"Install verl {TESTED[0]} to {TESTED[1]}, or a newer cw_plugin"
        )


def _why_absent(hook: Hook) -> str:
    """Why a hook is not in place, in words; empty if it is."""
    try:
        module = importlib.import_module(hook.module)
    except ModuleNotFoundError as error:
        if not hook.module.startswith(str(error.name)):
            raise  # the module is there, and lacks a package of its own
        return f"there is no {hook.module}"
    if _installed(hook, module):
        return ""
    return _problem(hook, module) or f"{hook.target} is not hooked"
