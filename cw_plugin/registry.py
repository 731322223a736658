"""What a weighting is: a function from a prompt group to the weights of its tokens; and how it is found by its name.

A weighting of your own is named as "module:function". It gets a :class:`~cw_plugin.weights.Group`, whose
tensors hold the N valid tokens of a prompt group, row after row. It returns N weights, finite and not negative::

    from cw_plugin.registry import weighting

    @weighting(scaled=True)
    def wide(group):
        return (-((group.z / 3) ** 2) / 2).exp()

It runs on the CPU, whatever the model is on. Log-probs are float32, or float64 if the host's are.
"""

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cw_plugin.errors import OptionsError, first_line

if TYPE_CHECKING:  # options.py, which reads this, must not load torch
    from torch import Tensor

BUILT_IN = {
    "gaussian": "cw_plugin.weights:gaussian",
    "none": "cw_plugin.weights:none",
    "ar": "cw_plugin.weightings.ar:ar",
    "stare": "cw_plugin.weightings.stare:stare",
    "stare_gated": "cw_plugin.weightings.stare:stare_gated",
    "clip_cov": "cw_plugin.weightings.clip_cov:clip_cov",
    "drop_top_cov": "cw_plugin.weightings.clip_cov:drop_top_cov",
    "positive_weight": "cw_plugin.weightings.positive_weight:positive_weight",
    "high_entropy": "cw_plugin.weightings.high_entropy:high_entropy",
    "steer": "cw_plugin.weightings.steer:steer",
    "steer_exp": "cw_plugin.weightings.steer:steer_exp",
    "entropy_advantage": "cw_plugin.weightings.entropy_advantage:entropy_advantage",
    "state": "cw_plugin.weightings.state:state",
}


# From a cw_plugin.weights.Group, whose module imports this one, to the weights (N,) of its tokens.
Function: TypeAlias = "Callable[..., Tensor]"


@dataclass(frozen=True)
class Weighting:
    """A function from a group to weights, and what it declares.

    Attributes:
        function: from a :class:`~cw_plugin.weights.Group` to the weights (N,) of its tokens.
        scaled: whether the weights are scaled to average 1 over the group, or used as they are.
        needs_entropies: whether it reads ``group.entropies``. Then it runs only where the host has them.
        needs_batch_entropy: whether it reads ``group.batch_entropy``, too, the mean of the batch. Then a process that
            has a part of the batch gathers the others.
        name: for error messages.
    """

    function: Function
    scaled: bool
    needs_entropies: bool = False
    needs_batch_entropy: bool = False
    name: str = ""

    def __call__(self, group: object) -> "Tensor":
        """The weights of a group's tokens, before they are scaled."""
        return self.function(group)


def weighting(
    *, scaled: bool, needs_entropies: bool = False, needs_batch_entropy: bool = False
) -> Callable[[Function], Weighting]:
    """Declare what a function from a group to weights is; attributes as in :class:`Weighting`."""

    def declare(function: Function) -> Weighting:
        name = f"{function.__module__}:{getattr(function, '__name__', repr(function))}"
        return Weighting(function, scaled, needs_entropies or needs_batch_entropy, needs_batch_entropy, name)

    return declare


def load(name: str) -> Weighting:
    """The weighting of this name, one of BUILT_IN or "module:function"; an OptionsError if there is none."""
    module, _, function_name = BUILT_IN.get(name, str(name)).partition(":")
    if not module or module.startswith(".") or not function_name:
        problem = f"weights={name!r} is invalid"
        raise OptionsError(problem, fix=f"use one of {', '.join(BUILT_IN)}, or module:function")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        problem = f"weights={name!r} cannot be imported ({error})"
        raise OptionsError(problem, fix="put its folder on PYTHONPATH") from error
    except Exception as error:  # the module's own code may raise anything
        problem = f"weights={name!r} cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise OptionsError(problem, fix=f"mend {_place_of(error)}") from error
    found = getattr(imported, function_name, None)
    if found is None:
        file = getattr(imported, "__file__", None) or module
        raise OptionsError(f"weights={name!r}: {file} has no function {function_name}", fix="name one that it has")
    if not isinstance(found, Weighting):
        raise OptionsError(
            f"weights={name!r} is a {type(found).__name__}",
            fix="put @weighting(scaled=True) before a function from a group to weights (cw_plugin/weightings)",
        )
    return found


def _place_of(error: Exception) -> str:
    """File and line where a module failed while it was imported."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last_call = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last_call.filename}, line {last_call.lineno}"
