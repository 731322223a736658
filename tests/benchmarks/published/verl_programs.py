"""Whether a program of verl that has a trainer of its own trains on the weights, and whether a loss keeps them."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from omegaconf import DictConfig
from torch import Tensor

from cw_plugin.errors import HostError
from cw_plugin.hosts.verl import hooks
from published import Outcome, Verdict
from published.programs import Reached


def judge_program(program: str, config: DictConfig) -> Verdict:
    """Of a module with a trainer of its own, by what it calls while the plugin's run stands in verl's place."""
    try:
        own = list(_own_trainers(program))
    except ImportError as error:
        is_upstream = (error.name or "").split(".")[0] in ("verl", program.split(".")[0])
        return Verdict(Outcome.BROKEN if is_upstream else Outcome.UNKNOWN, f"{program} cannot be loaded: {error}")
    for owner in own:
        calls = _replaced_calls(owner, config)
        if isinstance(calls, str):
            return Verdict(Outcome.NOT_SERVED, calls)
        if not calls:
            return Verdict(Outcome.SILENT, f"{owner.__module__}.{owner.__name__} computes advantages by itself")
        if not _begins(owner):
            return Verdict(
                Outcome.NOT_SERVED, f"{owner.__name__} does not call verl's constructor: the estimator stops"
            )
    return Verdict(Outcome.WORKS)


def _own_trainers(program: str) -> Iterator[type]:
    """Classes that a program imports, anywhere in it, which derive from verl's trainers."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    spec = importlib.util.find_spec(program)
    source = Path(spec.origin).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and any("Trainer" in name.name for name in node.names):
            module = importlib.import_module("." * node.level + (node.module or ""), program.rpartition(".")[0])
            for name in node.names:
                value: Any = getattr(module, name.name)
                value = getattr(getattr(value, "__ray_metadata__", None), "modified_class", value)
                is_trainer = isinstance(value, type) and issubclass(value, (RayPPOTrainer, PPOTrainer))
                if is_trainer and not value.__module__.startswith("verl."):
                    yield value


def _replaced_calls(owner: type, config: DictConfig) -> set[str] | str:
    """The functions that :func:`cw_plugin.hosts.verl.trainer.follow` replaced and this trainer's code calls; or what it
    says if it cannot."""
    from cw_plugin.hosts.verl.trainer import follow

    instance = owner.__new__(owner)
    instance.config, instance.tokenizer, instance.global_steps, instance.metrics = config, None, 1, {}
    method = next(name for name in ("_compute_advantage", "_fit_compute_advantage", "fit") if hasattr(owner, name))
    of_owner = getattr(owner, method)
    found: set[str] = set()

    def look(*_: object) -> object:
        module = inspect.getmodule(of_owner)
        names = {name for name, value in vars(module).items() if isinstance(value, partial)}
        found.update(names & set(_names(of_owner.__code__)))
        raise Reached

    look.__module__ = of_owner.__module__
    with patch.object(owner, method, look):
        try:
            follow(instance)
            getattr(instance, method)(*[MagicMock()] * (len(inspect.signature(of_owner).parameters) - 1))
        except Reached:
            return found
        except HostError as error:
            return str(error)
    raise AssertionError("the method did not run")


def keeps_weights(actor: DictConfig, loss_mode: str) -> bool:
    """Whether verl's policy loss gives each token a gradient in proportion to its weight, before the first update."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    config = omega_conf_to_dataclass(actor)
    rows, time = 4, 8
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=rows * time, global_batch_size=rows, loss_scale_factor=None
    )
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(rows, time, generator=generator)
    weights = 0.5 + torch.rand(rows, time, generator=generator)
    advantages = torch.tensor([1.0, -0.5, 0.7, -1.2])[:, None].expand(rows, time)

    def gradient(advantages: Tensor) -> Tensor:
        new = log_probs.clone().requires_grad_()
        loss, _metrics = get_policy_loss_fn(loss_mode)(
            old_log_prob=log_probs,
            log_prob=new,
            advantages=advantages,
            response_mask=torch.ones(rows, time),
            loss_agg_mode=actor.loss_agg_mode,
            config=config,
        )
        return torch.autograd.grad(loss, new)[0]

    return torch.allclose(gradient(advantages * weights), gradient(advantages) * weights, rtol=1e-4)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _begins(owner: type) -> bool:
    """Whether a trainer reaches a function of verl's where the plugin begins its run."""
    if hasattr(owner, "_init_resource_pools") and hasattr(owner._init_resource_pools, hooks._MARK):
        return True
    begin = next(base for base in owner.__mro__ if hasattr(vars(base).get("__init__"), hooks._MARK))
    required = {
        name: MagicMock() for name, given in inspect.signature(owner).parameters.items() if given.default is given.empty
    }
    with patch.object(begin, "__init__", side_effect=Reached):
        try:
            owner(**required)
        except Reached:
            return True
        except Exception:  # of the trainer itself, which had no run yet
            return False
    return False
