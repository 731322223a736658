"""Whether math-verify reads in a ground truth what stands there."""

import re

import sympy
from sympy.core.alphabets import greeks
from sympy.core.function import AppliedUndef

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.grading import parsed, read

_NO_ANSWER = ("nan", "null", "none", "n/a")
_LETTERS = {*greeks, "varepsilon", "varphi", "vartheta", "varrho", "hbar", "ell"}  # commands that are letters
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\}|\\mathbb\s*\{?\s*\w|\\[a-zA-Z]+|\\.")


def misread(ground_truth: str) -> str:
    """What math-verify makes of a ground truth that is not what stands there, in words; "" if it reads it rightly."""
    answer = read(final_boxed(ground_truth) or ground_truth)
    if ground_truth.strip().casefold() in _NO_ANSWER:
        return "says that there is no answer"
    if not answer.text:  # words, which are compared as such
        return ""
    value = parsed(answer.text)
    if value is None:
        return "cannot be read by math-verify"
    names = {str(symbol) for symbol in value.atoms(sympy.Symbol)} | {str(f.func) for f in value.atoms(AppliedUndef)}
    commands = {command[1:] for command in re.findall(r"\\[a-zA-Z]+", answer.text)} - _LETTERS
    if unknown := sorted(commands & names):
        return f"has \\{unknown[0]}, which math-verify reads as the name of a variable"
    text = _COMMAND.sub(" ", answer.text)
    if word := re.search(r"(?<![a-zA-Z_{])(?:[a-zA-Z]{5,}|[a-z]{3,}(?=\())", text):
        return f"has the word {word[0]}, which math-verify reads as a product of letters"
    hidden = [("e", (sympy.E, sympy.exp)), ("i", (sympy.I,)), ("d", (sympy.Derivative, sympy.Integral))]
    known = "".join(names).lower() + "".join(letter for letter, kinds in hidden if value.has(*kinds))
    if dropped := sorted(set(re.findall("[a-z]", text.lower())) - set(known)):
        return f"has the letter {dropped[0]}, which math-verify leaves out of {value}"
    return ""
