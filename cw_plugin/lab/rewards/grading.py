r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

What stands here refuses what math-verify accepts, and is not the answer. README.md has the decisions.
"""

import functools
import re

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.reading import Parsed, found_in, parsed, read

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
DECIMALS = {"training": 6, "evaluation": 5}

_OTHER_NUMBER = re.compile(  # words that make another number of the one beside them, or several
    r"(?<!\^)\d|\b(?:squared|cubed|factorial|hal(?:f|ve)|quarter|third|(?:four|fif|six|seven|eigh|nin|ten|hundred"
    r"|thousand)th|dozen|pair|couple|score|gross|twice|double|triple|hundred|thousand|million|base|mod|at|less|more|no"
    r"|not|and|or)s?\b|[\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d]"
)
_LAYOUT = re.compile(r"\{(\w)\}|(?<!,)\s+|(?<=\\)[dt](?=frac)")  # of no meaning
_EQUALS = re.compile(r"(?<![<>!])=(?![^(\[{]*[)\]}])|\\approx(?![a-zA-Z])")

# Numbers that are written out, in lists, intervals and matrices, perhaps with names.
_MATRIX = r"\{(?:[bp]?matrix|array|cases)\}(?:\{[clr|]+\})?"
_OPEN = rf"(?:[a-zA-Z]\w*(?:_\{{\w+\}})?(?:\(\w\))?\s*(?:=|\\in|\\approx)|\\?[\s(\[{{]|\\begin{_MATRIX})*"
_CLOSE = rf"(?:\\?[\s)\]}}%]|\^\s*\{{?\s*\\circ|(?:\\\\\s*)?\\end{_MATRIX})*"
_DIGITS = r"(?:10\s*\^\s*(?:\d|\{[+-]?\d+\})|\d+(?:\.\d*)?|\.\d+)"
_PART = rf"\s*(?:\{{\s*(?:[+-]\s*)?{_DIGITS}\s*\}}|\d)"  # of a fraction
_VALUE = rf"(?:\d*\s*\\[dtc]?frac{_PART}{_PART}|{_DIGITS}(?:\}}?\s*/\s*\d+)?|\\infty|\\emptyset)"
_NUMBER = rf"{_OPEN}(?:[+-]\s*)?{_VALUE}{_CLOSE}"
_WRITTEN_OUT = re.compile(rf"{_NUMBER}(?:(?:[,;&:]|\\\\|\\cup(?![a-zA-Z])){_NUMBER})*")

_OPERATION = re.compile(
    r"\\(?:sum|prod|i*nt|oint|lim|gcd|lcm|det|max|min|lfloor|lceil|d?binom|choose|[bp]?mod|Gamma)(?![a-zA-Z])"
    r"|[vV]matrix|!(?!=)|(?P<sum>\+|\\pm(?![a-zA-Z])|(?<=[\w)}])\s*-)"
    r"|(?P<product>\d\s*(?:\*|\\cdot|\\times|\\div)\s*\d)|(?P<power>\d\s*\^\s*(?:\d|\{\d+\}))"
)


def grade(ground_truth: str, text: str, extraction: str) -> tuple[float, str]:
    """1.0 or 0.0, and the answer as it stands in the text ("" when there is none)."""
    boxed = final_boxed(text)
    answer = found_in(text, extraction) if boxed is None else boxed
    if not answer or len(answer) > MAX_ANSWER:
        return 0.0, answer
    is_sentence = boxed is None and extraction == "evaluation"
    return float(_is_right(ground_truth, answer, DECIMALS[extraction], is_sentence)), answer


@functools.lru_cache(maxsize=4096)  # responses to one prompt often repeat an answer
def _is_right(ground_truth: str, answer: str, decimals: int, is_sentence: bool) -> bool:
    """Whether the answer equals the ground truth, names no other unit, and leaves no more to be worked out than it."""
    expected, given = read(final_boxed(ground_truth) or ground_truth), read(answer)
    if not expected.text or not given.text:
        return "" != expected.said == given.said
    words = [expected.words, given.words]  # on one side only, a mere unit is all right
    if words[0] != words[1] and (all(words) or _OTHER_NUMBER.search("".join(words))):
        return False
    if _plain(expected.text) == _plain(given.text):
        return True
    gold, value = parsed(expected.text), parsed(given.text)
    if gold is None or value is None or _are_other_kinds(gold, value, given.text):
        return False
    is_list = re.search(r"[,;](?![^(\[{]*[)\]}])", given.text)
    result = given.text if is_list else _EQUALS.split(given.text)[-1]
    if is_sentence:  # of it, lighteval's extraction takes a sum as well, as in "the answer is $9+1$"
        result = re.sub(r"(?<=\S)\s*\+|(?<=\})\s*(?=\\begin)", ",", result)
    if not _is_worked_out(result, expected.text, gold, value):
        return False
    gold, value = _alike(gold, value)
    decimals = _decimals(gold, value, decimals)
    is_equal = verify(gold, value, float_rounding=decimals, numeric_precision=max(15, decimals), timeout_seconds=None)
    if is_equal and isinstance(gold, sympy.Eq) and isinstance(value, sympy.Eq):
        # Their ratio must be a number: x^2 y = 0 and x y = 0 only have the same solutions.
        return not sympy.cancel((gold.lhs - gold.rhs) / (value.lhs - value.rhs)).free_symbols
    return bool(is_equal)


def _plain(text: str) -> str:
    """Without what has no meaning, and ``1,22`` as ``1.22``, which it is only beside that; ``1,222`` as it is."""
    return re.sub(r"^(-?(?![1-9]\d{0,2},\d{3}$)\d+),(?=\d+$)", r"\1.", _LAYOUT.sub(r"\1", text))


def _are_other_kinds(gold: Parsed, value: Parsed, answer: str) -> bool:
    """Whether one is a tuple, whose order counts, and the other a list or a set; or 1, and the other a percentage."""
    ordered = (sympy.Tuple, sympy.Interval)  # (1, 2) is read as an interval
    is_set = isinstance(gold, ordered) and answer.startswith(r"\{")
    return is_set or (isinstance(gold, FiniteSet) and isinstance(value, ordered)) or (gold == 1 and "%" in answer)


def _is_worked_out(answer: str, ground_truth: str, gold: Parsed, value: Parsed) -> bool:
    r"""Whether the answer leaves no operation that the ground truth does not leave, as 37 \cdot 43 does of 1591."""
    if _WRITTEN_OUT.fullmatch(ground_truth):
        is_irrational = isinstance(value, sympy.Expr) and value.is_number and value.doit().is_rational is False
        return is_irrational or bool(_WRITTEN_OUT.fullmatch(answer))
    left, allowed = ({m.lastgroup or m[0] for m in _OPERATION.finditer(text)} for text in (answer, ground_truth))
    return left <= allowed | (set(_OPERATION.groupindex) if gold.free_symbols else set())  # sums of letters may stay


def _alike(gold: Parsed, value: Parsed) -> tuple[Parsed, Parsed]:
    """Both as decimals if one is; and k = 1, n = 2 as a tuple, beside values without names."""
    kinds = (sympy.Integer, sympy.Float)
    if isinstance(gold, kinds) and isinstance(value, kinds) and gold.is_Float != value.is_Float:
        return gold.evalf(30), value.evalf(30)  # of 3 and 2.9999999, math-verify would round only one
    parts = gold._unsorted_args if isinstance(gold, FiniteSet) and not value.has(sympy.Eq) else []
    names = {str(part.lhs).partition("_")[0] for part in parts if isinstance(part, sympy.Eq)}
    is_list = len(names) < len(parts)  # as x_1 = 1, x_2 = 2
    return gold if is_list or not names else sympy.Tuple(*(part.rhs for part in parts)), value


def _decimals(gold: Parsed, value: Parsed, decimals: int) -> int:
    """At least as many, and so many that four digits of the smallest number are compared."""
    parts = [*sympy.preorder_traversal(gold), *sympy.preorder_traversal(value)]
    sizes = [abs(part.evalf()) for part in parts if isinstance(part, sympy.Expr) and part.is_number]
    return max([decimals, *(3 - int(sympy.floor(sympy.log(size, 10))) for size in sizes if size.is_Float and size)])
