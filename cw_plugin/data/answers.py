r"""From a dataset's answer column to the final answer alone."""

from __future__ import annotations

import re
from typing import Any

from cw_plugin.rewards.boxed import final_boxed, number_text

_REWRITES = [
    (re.compile(r"(?<!\\)\$"), ""),
    (re.compile(r"[\s.,]*, where .*", re.DOTALL), ""),  # OlympiadBench: the answer, then a sentence about its variables
    (re.compile(r"_\{\\(max|min) ?\}"), r"_{\1}"),
    (re.compile(r"\bnp\.(?=[a-z]+\()"), r"\\"),  # Minerva: np.arcsin(10/13)
    (re.compile(r"[\s.,;]+$"), ""),
]


def final_answer(value: Any, is_boxed: bool) -> str:
    r"""The answer in an answer column's value, "" where there is none.

    Args:
        value: a string or a number; a number's decimals go when they are zero (AMC's ``27.0``). None and NaN are none.
        is_boxed: the value is a worked solution, and the answer is in its last ``\boxed``.
    """
    if value is None or value != value:  # NaN is how a table says that there is none
        return ""
    text = number_text(value) or str(value)
    answer = (final_boxed(text) or "") if is_boxed else text
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()
