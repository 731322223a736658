r"""Extracts the final answer from a dataset's answer column."""

import re

from cw_plugin.lab.rewards import number_text
from cw_plugin.lab.rewards.boxed import final_boxed

_REWRITES = [
    (re.compile(r"(?<!\\)\$"), ""),
    (re.compile(r"[\s.,]*, where .*", re.DOTALL), ""),  # OlympiadBench: the answer, then a sentence about its variables
    (re.compile(r"_\{\\(max|min) ?\}"), r"_{\1}"),
    (re.compile(r"\bnp\.(?=[a-z]+\()"), r"\\"),  # Minerva: np.arcsin(10/13)
    (re.compile(r"[\s.,;]+$"), ""),
]


def final_answer(value: object, is_boxed: bool) -> str:
    r"""The answer in one value of an answer column, "" if it has no answer.

    Args:
        value: a string or a number; zero decimals are removed (AMC's ``27.0``). None and NaN mean no answer.
        is_boxed: whether the value is a worked solution, with the answer in its last ``\boxed``.
    """
    if value is None or value != value:  # in a table, NaN means no answer
        return ""
    text = number_text(value) or str(value)
    answer = (final_boxed(text) or "") if is_boxed else text
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()
