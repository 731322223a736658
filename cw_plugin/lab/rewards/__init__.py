r"""The reward of the paper for verl: 1 for a right answer, 1 for well-formed think tags.

Usage, for training and validation alike::

    reward.custom_reward_function.path=pkg://cw_plugin.lab.rewards
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.format_weight=1.0   # any keyword of compute_score

The grading processes start with the first answer (see :mod:`cw_plugin.lab.rewards.pool`).
"""

import functools
import math
import sys
from decimal import Decimal
from numbers import Number, Real
from typing import Any

from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards.pool import TIME_LIMIT, Grade, GradingPool, shared_pool
from cw_plugin.lab.rewards.think import answer_section, matched, template_opens_think

__all__ = ["GradingPool", "compute_score", "ground_truth_problem"]

_said: set[type[CWGRPOError]] = set()


def compute_score(
    data_source: str,
    solution_str: str | None,
    ground_truth: str | float | Decimal,
    extra_info: object = None,
    *,
    accuracy_weight: float = 1.0,
    format_weight: float = 1.0,
    extraction: str | None = None,
    opens_think: bool | None = None,
    model_path: str | None = None,
    time_limit: float = TIME_LIMIT,
    reward_router_address: str | None = None,
    reward_model_tokenizer: object = None,
) -> dict[str, float | str]:
    r"""Score one response; the signature is verl's, which passes more than is used here.

    Args:
        solution_str: the response, without the prompt. None counts as an empty response, which earns nothing.
        ground_truth: the final answer alone, as text, e.g. ``"\frac{1}{2}"``, or as a finite Python or numpy number.
        accuracy_weight, format_weight: what a right answer and a right format add to the score.
        extraction: ``"training"``, as open-rs grades in training (the boxed answer first, LaTeX only), or
            ``"evaluation"``, as its lighteval tasks do (boxed first, then any LaTeX, then plain numbers). By default
            "training" where ``data_source`` is Open-RS's name on the hub, else "evaluation".
        opens_think: whether the prompt ends with ``<think>``, so that the response must not repeat it, and is all
            thinking if it has no ``</think>``. By default read from the chat template of ``model_path``, a folder or a
            hub name. Without both, either form is well formed, and a response without tags is graded whole.
        time_limit: seconds of CPU time for one answer; an answer that takes longer counts as wrong.

    Returns:
        ``score`` (``accuracy_weight * acc + format_weight * format``), ``acc`` and ``format`` (0.0 or 1.0), and
        ``pred``, the answer that was graded ("" when none was found).

    Raises:
        OptionsError: a keyword has an invalid value.
        DataError: ``ground_truth`` is empty, or neither text nor a finite number (a bool, NaN, None, a list). verl
            drops the response and goes on, so this and every other error is printed on stderr as well, once.
    """
    try:
        if extraction not in (None, "training", "evaluation"):
            raise OptionsError(f"extraction={extraction!r} does not exist; use training or evaluation")
        if not time_limit > 0:
            raise OptionsError(f"time_limit must be > 0 (seconds), got {time_limit!r}")
        if problem := ground_truth_problem(ground_truth, parse=False):
            raise DataError(f"{problem} Correct the row, whose data_source is {str(data_source)!r}.")
        if opens_think is None and model_path is not None:
            opens_think = template_opens_think(model_path)
        expected = ground_truth if isinstance(ground_truth, str) else str(number_text(ground_truth))
        response = solution_str or ""
        well_formed = matched(response, opens_think)
        extraction = extraction or ("training" if data_source == "knoveleng/open-rs" else "evaluation")
        grade = shared_pool(time_limit).grade(expected, answer_section(response, opens_think), extraction)
        score = accuracy_weight * grade.accuracy + format_weight * well_formed
        return {"score": score, "acc": grade.accuracy, "format": well_formed, "pred": grade.prediction}
    except CWGRPOError as error:
        if "verl" in sys.modules and type(error) not in _said:
            _said.add(type(error))
            print(f"cw_plugin: the reward failed, and verl drops the rollouts it fails on: {error}", file=sys.stderr)
        raise


def ground_truth_problem(value: object, *, parse: bool = True) -> str | None:
    """Why no response can be graded against this ground truth, in one sentence; None if one can.

    Args:
        value: the ground truth of a row.
        parse: also compare it with what math-verify reads in it, which takes about 3 ms in a grading process.
    """
    if isinstance(value, (list, tuple, dict, set)) or (hasattr(value, "tolist") and not isinstance(value, Number)):
        return f"The ground truth is a {type(value).__name__}, {value!r:.200}; write it as one text, such as '2, 3'."
    text = value if isinstance(value, str) else number_text(value)
    if value is None or (text is not None and not text.strip()):
        return f"The ground truth is empty ({value!r}), so no response can be right."
    if text is None:
        return f"The ground truth is {value!r:.200} ({type(value).__name__}), but must be text or a finite number."
    grade = _read(text) if parse else Grade()
    if why := grade.stopped or (grade.failure.strip().splitlines() or [""])[-1]:
        return f"The ground truth {text!r:.200} could not be read: {why}."
    if grade.misread:
        return f"The ground truth {text!r:.200} {grade.misread}, so right answers count as wrong."
    return None


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (Real, Decimal)) and not isinstance(value, bool)  # numpy's are Real
    is_finite = is_number and value == value and abs(value) != math.inf  # math.isfinite cannot convert 10**400
    return str(value).removesuffix(".0") if is_finite else None


@functools.lru_cache(maxsize=65536)  # TRL asks with each response
def _read(ground_truth: str) -> Grade:
    return shared_pool().read(ground_truth)
