"""Every change this package makes to verl, in one list: :data:`HOOKS`.

verl's registries take the estimator, the loss, and the trainer of ``cw-grpo evaluate`` (benchmarks.py). Estimator and
loss need more than verl passes, and the hooks supply it. A hook wraps one function of verl, right after verl imports
its module. verl's function always runs, unchanged. The function that runs around it says what the hook does, why, and
which change of verl would remove it.

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
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import wrapt

from cw_plugin.errors import HostError
from cw_plugin.verl_integration import NAME, TESTED, current_run
from cw_plugin.verl_integration.accepted_settings import check_config, estimator_and_loss, uses_v1

logger = logging.getLogger("cw_plugin")

# Gets one call: verl's function, and its arguments by name. ``call.proceed()`` makes the call.
Around = Callable[["Call"], Any]


@dataclass
class Call:
    """One call of a hooked function: ``proceed()`` makes it, with the current ``arguments``."""

    function: Callable[..., Any]
    bound: inspect.BoundArguments

    @property
    def arguments(self) -> dict[str, Any]:
        return self.bound.arguments

    def proceed(self) -> Any:
        return self.function(*self.bound.args, **self.bound.kwargs)


@dataclass(frozen=True)
class Hook:
    """One hooked function of verl.

    Attributes:
        module: the module in whose namespace the function is replaced.
        function: its name there, dotted for a method.
        needs: parameters that the hook relies on.
        around: what runs in place of the function.
        trainer: the trainer that needs the hook, "V1" or "legacy"; None for both. "refused" is for programs
            with trainers of their own, which cw_grpo refuses.
    """

    module: str
    function: str
    needs: tuple[str, ...]
    around: Around
    trainer: Literal["V1", "legacy", "refused"] | None = None

    @property
    def target(self) -> str:
        return f"{self.module}.{self.function}"


def _begin_run(call: Call) -> Any:
    """Remembers the trainer, for its step and folder, and checks its configuration once more.

    Why: neither an estimator nor a loss is told the step or the whole configuration, and not every program that starts
    a trainer calls validate_config. Removed by: a verl that hands the trainer, or its step and configuration, to
    estimators.
    """
    used = _check(call.arguments["config"])
    result = call.proceed()
    current_run.begin(call.arguments["self"] if used else None)
    return result


def _hand_over_batch(call: Call) -> Any:
    """Remembers old_log_probs, and under V1 the rows' session keys, while verl computes advantages with cw_grpo.

    Why: compute_advantage passes an estimator rewards, mask and uids, but no log-probs, and V1 applies the rule for
    sessions of several outputs to grpo alone. Removed by: part 2 of patches/, whose verl passes old_log_probs and
    final_index, which the estimator prefers; the weights are then the same without this hook, and it only serves the
    token records.
    """
    from cw_plugin.verl_integration.estimator import TrainerBatch, batch_of_trainer

    if call.arguments["adv_estimator"] != NAME or batch_of_trainer.get() is not None:
        return call.proceed()
    if current_run.current() is None:
        raise HostError(
            f"{NAME} does not know the trainer that computes these advantages; start verl.trainer.main_ppo, or a "
            "trainer that derives from verl's RayPPOTrainer and calls its __init__"
        )
    data, keys = call.arguments["data"], call.arguments.get("batch_keys")

    def sequences(rows: Any) -> Any:
        if keys is None:
            return [(data.batch["prompts"][row], data.batch["responses"][row]) for row in rows]
        import transfer_queue

        found = transfer_queue.kv_batch_get(
            keys=[keys[row] for row in rows], partition_id="train", select_fields=["prompts", "responses"]
        )
        return zip(found["prompts"].unbind(), found["responses"].unbind(), strict=True)

    token = batch_of_trainer.set(TrainerBatch(data.batch.get("old_log_probs", None), keys, sequences))
    try:
        return call.proceed()
    finally:
        batch_of_trainer.reset(token)


def _complete_metrics(call: Call) -> Any:
    """Adds the estimator's metrics, and renames actor/cw_grpo/* of the loss to cw_grpo/*.

    Why: an estimator returns advantages and returns, and has no way to report a metric; verl puts actor/ before every
    metric of a loss. Removed by: a verl whose estimators may return metrics.
    """
    if (this_run := current_run.current()) is not None:
        call.arguments["data"] = this_run.complete(call.arguments["data"])
    return call.proceed()


def _check_before_start(call: Call) -> Any:
    """Checks the cw_grpo settings, that the hooks are in place, and the ground truths, before Ray or a worker starts.

    Why: neither estimator nor loss sees the whole configuration, so neither can refuse to weigh twice; and where the
    reward raises an error, verl drops the response. Removed by: a check of verl's own, once cw_grpo is part of verl.
    """
    from cw_plugin.verl_integration.ground_truths import require_ground_truths

    result = call.proceed()
    if _check(call.arguments["config"]):
        require_ground_truths(call.arguments["config"])
    return result


def _check_before_ray(call: Call) -> Any:
    """Checks the cw_grpo settings of programs that start their own trainers with main_ppo's run_ppo.

    Why: fully_async_policy never calls validate_config, and its trainer does not call RayPPOTrainer.__init__, so it
    would train with the loss unchecked. Removed by: a fully_async_policy that calls validate_config.
    """
    check_config(call.arguments["config"])
    return call.proceed()


def _check(config: Any) -> bool:
    """Whether a run uses cw_grpo; raises if its settings cannot work."""
    check_config(config)
    used = any(estimator_and_loss(config))
    if used:
        require_hooks(config)
    return used


_V1 = "verl.trainer.ppo.v1.trainer_base"
_LEGACY = "verl.trainer.ppo.ray_trainer"
HOOKS = (
    Hook(_V1, "PPOTrainer.__init__", ("self", "config"), _begin_run, "V1"),
    Hook(_LEGACY, "RayPPOTrainer.__init__", ("self", "config"), _begin_run, "legacy"),
    Hook(
        _V1,
        "compute_advantage_for_multi_trajectories",
        ("data", "batch_keys", "adv_estimator"),
        _hand_over_batch,
        "V1",
    ),
    Hook(_LEGACY, "compute_advantage", ("data", "adv_estimator"), _hand_over_batch, "legacy"),
    Hook("verl.utils.tracking", "Tracking.log", ("data",), _complete_metrics),
    Hook("verl.utils.config", "validate_config", ("config",), _check_before_start),
    Hook("verl.trainer.main_ppo", "run_ppo", ("config",), _check_before_ray, "refused"),
)

_MARK = "_cw_plugin_hook"  # on a function that was put in place of verl's: the hook's target


def hooks_of(config: Any) -> list[Hook]:
    """The hooks that a run with this configuration of verl needs."""
    trainer = "V1" if uses_v1(config) else "legacy"
    return [hook for hook in HOOKS if hook.trainer in (None, trainer)]


def verl_has_its_own() -> bool:
    """Whether verl will run another cw_grpo than this package's, to which its options and checks do not apply."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage

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
    """What this verl lacks for a hook, in words; empty if nothing."""
    try:
        function = wrapt.resolve_path(module, hook.function)[2]
    except AttributeError:
        return f"there is no {hook.target}"
    lacking = sorted(set(hook.needs) - set(inspect.signature(function).parameters))
    return f"{hook.target} has no {' or '.join(lacking)}" if lacking else ""


def _install(hook: Hook, module: ModuleType) -> None:
    if _installed(hook, module):
        return
    if problem := _problem(hook, module):
        logger.error("cw_plugin does not fit this verl, and cw_grpo will be refused: %s", problem)
        return
    owner, name, function = wrapt.resolve_path(module, hook.function)
    signature = inspect.signature(function)

    # A plain function of the same name: up to verl 0.8, Ray pickles a TaskRunner by value, and what it calls by
    # reference. An object of another class could not be pickled like that.
    @functools.wraps(function)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        if verl_has_its_own():
            return function(*args, **kwargs)
        return hook.around(Call(function, signature.bind(*args, **kwargs)))

    setattr(hooked, _MARK, hook.target)
    setattr(owner, name, hooked)


def _register_estimator_and_loss(core_algos: ModuleType) -> None:
    from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage
    from cw_plugin.verl_integration.loss import compute_policy_loss_cw_grpo

    add_estimator, add_loss = core_algos.register_adv_est, core_algos.register_policy_loss
    if "fields" in inspect.signature(add_estimator).parameters:  # part 2 of patches/
        add_estimator = functools.partial(add_estimator, fields=["old_log_probs", "final_index"])
    for registry, add, function in (
        (core_algos.ADV_ESTIMATOR_REGISTRY, add_estimator, compute_cw_grpo_advantage),
        (core_algos.POLICY_LOSS_REGISTRY, add_loss, compute_policy_loss_cw_grpo),
    ):
        if registry.get(NAME, function) is not function:
            logger.warning(
                "cw_plugin: %s is already registered (%r) and used as it is, without cw_plugin's options and metrics",
                NAME, registry[NAME],
            )  # fmt: skip
        elif function is compute_cw_grpo_advantage or not verl_has_its_own():
            # Beside verl's own estimator our loss stays out: nothing would refuse the two together.
            add(NAME)(function)


def _register_trainer(_: ModuleType) -> None:
    importlib.import_module("cw_plugin.verl_integration.benchmark_trainer")


@functools.cache
def install_when_imported() -> None:
    """Fill verl's registries and install the hooks, each when (or if already) its module is imported."""
    wrapt.register_post_import_hook(_register_estimator_and_loss, "verl.trainer.ppo.core_algos")
    wrapt.register_post_import_hook(_register_trainer, "verl.trainer.ppo.v1.trainer_sync")
    for hook in HOOKS:
        wrapt.register_post_import_hook(functools.partial(_install, hook), hook.module)


def require_hooks(config: Any) -> None:
    """Raise HostError, with what this verl lacks, unless every hook that its configuration needs is in place here."""
    import verl

    absent = []
    for hook in hooks_of(config):
        try:
            module = importlib.import_module(hook.module)
        except ModuleNotFoundError as error:
            if not hook.module.startswith(str(error.name)):
                raise  # the module is there, and lacks a package of its own
            absent.append(f"there is no {hook.module}")
        else:
            if not _installed(hook, module):
                absent.append(_problem(hook, module) or f"{hook.target} is not hooked")
    if absent:
        raise HostError(
            f"cw_plugin does not fit verl {verl.__version__}: {'; '.join(absent)}. "
            f"Install verl {TESTED[0]} to {TESTED[1]}, or a newer cw_plugin"
        )
