"""Kernels of your own: functions from z = c / sigma to the weight w, named as "module:function".

For example, a kernel three times as wide as the paper's, and one on the positive side alone::

    def wide(z):
        return (-(z / 3) ** 2 / 2).exp()

    def positive(z):
        return (-z.clamp(min=0) ** 2 / 2).exp()

A kernel gets the tokens of one group, as a tensor (N,) on the CPU, whatever the model is on: float32, or float64 for
log-probs of float64. It returns their weights before normalisation in the same shape, finite and not negative. z is 0
for all tokens of a group whose covariances do not differ.
"""

import importlib
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from cw_plugin.errors import OptionsError, first_line

if TYPE_CHECKING:  # options.py, which reads this, must not load torch
    from torch import Tensor

Kernel = Callable[["Tensor"], "Tensor"]

NAMES = ("gaussian", "none")  # the kernels of weights.py


def load(name: str) -> Kernel:
    """The function that "module:function" names; an OptionsError if there is none."""
    module, _, function_name = str(name).partition(":")
    if not module or module.startswith(".") or not function_name:
        raise OptionsError(f"kernel={name!r} is invalid", fix=f"use one of {', '.join(NAMES)}, or module:function")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        problem = f"kernel={name!r} cannot be imported ({error})"
        raise OptionsError(problem, fix="put its folder on PYTHONPATH") from error
    except Exception as error:  # the module's own code may raise anything
        problem = f"kernel={name!r} cannot be imported ({type(error).__name__}: {first_line(error)})"
        raise OptionsError(problem, fix=f"mend {_place_of(error)}") from error
    function: Kernel | None = getattr(imported, function_name, None)
    if function is None:
        file = getattr(imported, "__file__", None) or module
        raise OptionsError(f"kernel={name!r}: {file} has no function {function_name}", fix="name one that it has")
    if not callable(function):
        raise OptionsError(f"kernel={name!r} is a {type(function).__name__}", fix="name a function from z to weights")
    return function


def _place_of(error: Exception) -> str:
    """File and line where a module failed while it was imported."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last_call = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last_call.filename}, line {last_call.lineno}"


def checked(kernel: str | Kernel) -> Kernel:
    """The kernel, refused with OptionsError as soon as it returns what cannot be weights."""
    function = load(kernel) if isinstance(kernel, str) else kernel
    name = kernel if isinstance(kernel, str) else getattr(kernel, "__name__", repr(kernel))

    def weights(z: "Tensor") -> "Tensor":
        if not z.isfinite().all():
            return z  # reweight refuses the log-probs or advantages that it comes from
        try:
            w = function(z.clone())
        except Exception as error:
            raised = f"{type(error).__name__}: {first_line(error)}"
            raise OptionsError(
                f"kernel={name!r} raised {raised}; mend it for z, a tensor of shape {tuple(z.shape)} on the CPU"
            ) from error
        if not isinstance(w, type(z)) or w.shape != z.shape:
            got = f"shape {tuple(w.shape)}" if isinstance(w, type(z)) else f"a {type(w).__name__}"
            raise OptionsError(f"kernel={name!r} returned {got}; return one weight for each of z's {len(z)} values")
        w = w.to(z)
        if (wrong := ~w.isfinite() | (w < 0)).any():
            at = int(wrong.nonzero()[0])
            raise OptionsError(
                f"kernel={name!r} returned {w[at]:.3g} at z={z[at]:.3g}; weights must be finite and not negative"
            )
        if not w.any():
            raise OptionsError(
                f"kernel={name!r} returned 0 for all {len(z)} tokens of a group; give some a positive weight"
            )
        return w

    return weights
