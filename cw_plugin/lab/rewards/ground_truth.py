r"""How math-verify misreads a ground truth.

Nothing is graded here. :func:`cw_plugin.lab.rewards.ground_truth_problem` asks it in a grading process for each row, so
that ``cw-grpo prepare``, the doctor and TRL's reward can warn of a row to which no right answer would count.
"""

import re

import sympy

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.reading import parsed, read

_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\}|\\mathbb\s*\{?\s*\w|\\[a-zA-Z]+|\\.")


def misread(ground_truth: str) -> str:
    """How math-verify misreads the ground truth, in words; empty if it reads it rightly."""
    answer = read(final_boxed(ground_truth) or ground_truth)
    if ground_truth.strip().casefold() in ("nan", "null", "none", "n/a"):
        return "says that there is no answer"
    if not answer.text:  # words, which are compared as such
        return ""
    value = parsed(answer.text)
    if value is None:
        return "cannot be read by math-verify"
    names = {str(symbol) for symbol in value.atoms(sympy.Symbol)} & set(re.findall(r"\\([a-zA-Z]+)", answer.text))
    if unknown := sorted(name for name in names if not sympy.latex(sympy.Symbol(name)).startswith("\\")):  # no letter
        return f"has \\{unknown[0]}, which math-verify reads as the name of a variable"
    text = _COMMAND.sub(" ", answer.text)
    if word := re.search(r"(?<![a-zA-Z_{])(?:[a-zA-Z]{5,}|[a-z]{3,}(?=\())", text):
        return f"has the word {word[0]}, which math-verify reads as a product of letters"
    known = _COMMAND.sub(" ", sympy.latex(value)).lower()
    if dropped := sorted(set(re.findall("[a-z]", text.lower())) - set(known)):
        return f"has the letter {dropped[0]}, which math-verify leaves out of {value}"
    return ""
