"""What a weighting is: a function from a prompt group to the weights of its tokens; and how it is found by its name.

A weighting of your own is named as "module:function". It gets a :class:`~cw_plugin.weights.Group`, whose
tensors hold the N valid tokens of a prompt group, row after row. It returns N weights, finite and not negative::

    from cw_plugin.registry import weighting

    @weighting(scaled=True)
    def wide(group):
        return (-((group.z / 3) ** 2) / 2).exp()

It runs on the CPU, whatever the model is on. Log-probs are float32, or float64 if the host's are. A number that a user
may change is a :class:`Setting`, and an argument of the function::

    @weighting(scaled=True, settings={"width": Setting(3.0, low=0.1, high=100)})
    def wide(group, width):
        return (-((group.z / width) ** 2) / 2).exp()
"""

import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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
    "repo_r": "cw_plugin.weightings.repo_r:repo_r",
    "aepo": "cw_plugin.weightings.aepo:aepo",
    "gtpo_simplified": "cw_plugin.weightings.gtpo_simplified:gtpo_simplified",
    "eda": "cw_plugin.weightings.eda:eda",
    "empg": "cw_plugin.weightings.empg:empg",
    "state": "cw_plugin.weightings.state:state",
}


# From a cw_plugin.weights.Group, whose module imports this one, to the weights (N,) of its tokens.
Function: TypeAlias = "Callable[..., Tensor]"


@dataclass(frozen=True)
class Setting:
    """A number that a weighting takes: its default, and the smallest and the largest value that it may have."""

    default: float
    low: float
    high: float

    def checked(self, name: str, value: object) -> float:
        """The value as a number; an OptionsError if it is none, not finite, or not in the range."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or not self.low <= number <= self.high:
            problem = f"settings: {name}={value!r} is invalid"
            raise OptionsError(problem, fix=f"use a number from {self.low:g} to {self.high:g}")
        return number


@dataclass(frozen=True)
class Weighting:
    """A function from a group to weights, and what it declares.

    Attributes:
        function: from a :class:`~cw_plugin.weights.Group` to the weights (N,) of its tokens.
        scaled: whether the weights are scaled to average 1 over the group, or used as they are.
        needs_entropies: whether it reads ``group.entropies``. Then it runs only where the host has them.
        needs_batch_entropy: whether it reads ``group.batch_entropy``, too, the mean of the batch. Then a process that
            has a part of the batch gathers the others.
        needs_several_responses: whether its weights compare the responses of a group, as covariances do, and so mean
            nothing for one response alone. Then groups of one response are refused.
        settings: the numbers that a user may change, by name; the function gets them by name.
        values: what they are.
        name: as a user gives it.
    """

    function: Function
    scaled: bool
    needs_entropies: bool = False
    needs_batch_entropy: bool = False
    needs_several_responses: bool = False
    settings: Mapping[str, Setting] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    name: str = ""

    def __call__(self, group: object) -> "Tensor":
        """The weights of a group's tokens, before they are scaled."""
        return self.function(group, **self.values)

    def with_settings(self, given: Mapping[str, object]) -> "Weighting":
        """The same with other settings; an OptionsError for an unknown name, or a value out of range."""
        values = dict(self.values)
        for name, value in given.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise OptionsError(f"settings: weights={self.name!r} has no setting {name!r}", fix=f"it has {known}")
            values[name] = self.settings[name].checked(name, value)
        return replace(self, values=values) if given else self


def weighting(
    bare: object = None,
    /,
    *,
    scaled: bool | None = None,
    needs_entropies: bool = False,
    needs_batch_entropy: bool = False,
    needs_several_responses: bool = False,
    settings: Mapping[str, Setting] | None = None,
) -> Callable[[Function], Weighting]:
    """Declare what a function from a group to weights is; attributes as in :class:`Weighting`.

    Raises:
        OptionsError: ``scaled`` is not given, as in a bare ``@weighting``; or a default is not in its range.
    """
    if bare is not None or scaled is None:
        raise OptionsError(
            "@weighting must say whether weights are scaled to mean 1", fix="write @weighting(scaled=True)"
        )
    is_scaled, declared = scaled, settings or {}

    def declare(function: Function) -> Weighting:
        place = f"{function.__module__}:{getattr(function, '__name__', repr(function))}"
        with_defaults = Weighting(
            function,
            is_scaled,
            needs_entropies=needs_entropies or needs_batch_entropy,
            needs_batch_entropy=needs_batch_entropy,
            needs_several_responses=needs_several_responses,
            settings=declared,
            name=next((name for name, known in BUILT_IN.items() if known == place), place),
        )
        return with_defaults.with_settings({name: setting.default for name, setting in declared.items()})

    return declare


def load(name: str, settings: Mapping[str, object] | None = None) -> Weighting:
    """The weighting of this name, one of BUILT_IN or "module:function", with these settings, by name.

    Options asks for it when a run begins, on every host, and tries it on a small group.

    Raises:
        OptionsError: there is none, or it does not have such settings.
    """
    text = name if isinstance(name, str) else ""  # a host's configuration may hold anything
    module, _, function_name = BUILT_IN.get(text, text).partition(":")
    if not module or module.startswith(".") or not function_name:
        problem = f"weights={name!r} is invalid"
        raise OptionsError(problem, fix=f"use one of {', '.join(BUILT_IN)}, or module:function")
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # the module's own code may raise anything
        problem = f"weights={name!r} cannot be imported ({type(error).__name__}: {first_line(error)})"
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        fix = "put its folder on PYTHONPATH" if is_absent else f"mend {place_of(error)}"
        raise OptionsError(problem, fix) from error
    found = getattr(imported, function_name, None)
    if found is None:
        file = getattr(imported, "__file__", None) or module
        raise OptionsError(f"weights={name!r}: {file} has no function {function_name}", fix="name one that it has")
    if not isinstance(found, Weighting):
        raise OptionsError(
            f"weights={name!r} is a {type(found).__name__}",
            fix="put @weighting(scaled=True) before a function from a group to weights (cw_plugin/weightings)",
        )
    return found.with_settings(settings or {})


def place_of(error: Exception, function: Callable[..., object] | None = None) -> str:
    """File and line where code failed: the last line that ran in the file of ``function``, or anywhere but here.

    A function that did not run at all, because its parameters are others, failed where it begins.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    calls = traceback.extract_tb(error.__traceback__)
    # A partial, and an object that is called, have no code of their own.
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        lines = [call.lineno for call in calls if call.filename == code.co_filename] or [code.co_firstlineno]
        return f"{code.co_filename}, line {lines[-1]}"
    elsewhere = [call for call in calls if Path(call.filename).parent != Path(__file__).parent]
    return f"{elsewhere[-1].filename}, line {elsewhere[-1].lineno}" if elsewhere else repr(function)
