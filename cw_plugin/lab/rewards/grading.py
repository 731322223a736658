r"""Grading one answer with math-verify, within the limits of :mod:`cw_plugin.lab.rewards.worker`.

Ground truth and answer are rewritten (:mod:`cw_plugin.lab.rewards.rewrites`), and given to math-verify in the same
form, in a box. What stands here refuses what math-verify accepts, and is not the answer. README.md has the decisions.
"""

import functools
import itertools
import re
from typing import NamedTuple

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import parse, verify
from sympy.core.relational import Relational

from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.rewrites import rewritten
from cw_plugin.lab.rewards.unboxed import LATEX, found_in
from cw_plugin.lab.rewards.unfinished import Parsed, members, unfinished
from cw_plugin.lab.rewards.words import changes, split_words, units_agree

MAX_ANSWER = 2_000  # characters; the longest ground truth of the paper's data has about 250
MAX_DEPTH = 24  # brackets within brackets; math-verify's grammar needs seconds for 50
DECIMALS = {"training": 6, "evaluation": 5}
RELATIVE_TOLERANCE = 1e-3

_BASE = re.compile(r"(\d\s*\)?)\s*_\s*(?:(\d+)|\{\s*(?:\\text\s*\{)?\s*(?:base\s*)?\(?(\w+)\)?\s*\}?\s*\})")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}


class _Answer(NamedTuple):
    """A ground truth or an answer, rewritten: what math-verify is given, and what is compared beside it."""

    text: str
    words: str
    bases: list[str]
    is_percent: bool

    @property
    def side(self) -> str:
        """What stands right of the last ``=``; all of a list."""
        is_list = re.search(r",(?![^(\[{]*[)\]}])", self.text)
        return self.text if is_list else re.split(r"=(?![^(\[{]*[)\]}])", self.text)[-1]

    @property
    def bracket(self) -> str:
        """What the bracket at the beginning makes of the answer."""
        side = self.side.removeprefix(r"\left")
        return "set" if side.startswith(r"\{") else "tuple" if side.startswith("(") else ""

    @property
    def said(self) -> str:
        """What an answer in words says."""
        return re.sub(r"\\[a-zA-Z]*|[\s,;:(){}\[\]]", "", self.text + self.words).rstrip(".").casefold()


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
    if not _fit_together(expected, given):
        return False
    gold = parsed(_point_for_comma(expected.text, given.text))
    value = parsed(_point_for_comma(given.text, expected.text))
    if gold is None or value is None:
        return False
    pairs = _readings_of_percent(gold, value, expected.is_percent, given.is_percent)
    if not any(_equal(*pair, decimals) for pair in pairs):
        return False
    allowed = unfinished(expected.side, gold)
    if gold.free_symbols:
        allowed |= {"letters"}
    # Of a sentence, lighteval's extraction takes a sum as well, as in "the answer is $9+1$".
    if is_sentence:
        allowed |= {"addition", "matrices"}
    left = unfinished(given.side, value) - allowed
    is_irrational = left == {"irrational"} and _is_number(value) and value.doit().is_rational is False
    return not left or is_irrational


def _fit_together(expected: _Answer, given: _Answer) -> bool:
    """Whether brackets, bases, words and units, which math-verify leaves out, are those of the ground truth."""
    if {expected.bracket, given.bracket} == {"set", "tuple"}:
        return False
    if expected.bases and given.bases != expected.bases:
        return False
    return changes(expected.words) == changes(given.words) and units_agree(expected.words, given.words)


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> _Answer:
    """A ground truth or an answer, rewritten and taken apart."""
    text, words = split_words(rewritten(answer))
    if re.fullmatch(r"[a-zA-Z]{3,}(?:\s+[a-zA-Z]+)*", text):  # a word, and no product of letters
        text, words = "", text
    if re.fullmatch(r"[\s(){}\[\].,;:]*", text):  # nothing but the brackets of (\text{A})
        text = ""
    bases = [_BASES.get(base, base) for _, *bases in _BASE.findall(text) for base in bases if base]
    return _Answer(_BASE.sub(r"\1", text).replace(r"\%", ""), words, bases, r"\%" in text)


def _point_for_comma(answer: str, other: str) -> str:
    """``1,22`` as ``1.22``, if ``other``, with which it will be compared, has a decimal point and no comma.

    Alone, ``1,22`` is a list. A list in brackets or with spaces is never a number, nor has ``1,222`` decimals.
    """
    if "," in other or not re.search(r"\d\.\d", other) or re.search(r"[(\[;]|\\\{|,(?!\d)", answer):
        return answer
    return re.sub(r"(?<![\d.,])(?![1-9]\d{0,2},\d{3}(?!\d))(\d+),(\d+)(?![\d.,])", r"\1.\2", answer)


@functools.lru_cache(maxsize=4096)
def parsed(answer: str) -> Parsed | None:
    """The answer as math-verify reads it in a box; None when it does not, or when that has no finite value."""
    steps = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
    depths = itertools.accumulate(steps.get(character, 0) for character in answer)
    if max(depths, default=0) > MAX_DEPTH:
        return None
    boxed = rf"\boxed{{{answer}}}"
    found = parse(boxed, [LATEX], "no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if found and not found[0].has(sympy.nan, sympy.zoo) else None


def _readings_of_percent(
    gold: Parsed, value: Parsed, gold_has_sign: bool, value_has_sign: bool
) -> list[tuple[Parsed, Parsed]]:
    """Pairs of ground truth and answer of which one must be equal."""
    if gold_has_sign and not value_has_sign and _is_number(gold):  # 50 and 0.5 are both right for 50%
        return [(gold, value), (gold / 100, value)]
    if value_has_sign and not gold_has_sign:
        by_value = [(gold, value / 100)] if _is_number(value) else []
        # The sign means nothing where the ground truth is a percentage without it, so more than 1.
        return by_value if _is_number(gold) and abs(gold) <= 1 else [(gold, value), *by_value]
    return [(gold, value)]


def _is_number(parsed: Parsed) -> bool:
    return isinstance(parsed, sympy.Expr) and bool(parsed.is_number)


def _equal(gold: Parsed, answer: Parsed, decimals: int) -> bool:
    gold, answer = _alike(gold, answer)
    if not verify(gold, answer, float_rounding=decimals, timeout_seconds=None, allow_set_relation_comp=True):
        return False
    given = list(members(answer))  # none of a set such as the real numbers
    return not _other_equation(gold, answer) and (
        not given or all(any(_close(one, other) for other in given) for one in members(gold))
    )


def _alike(gold: Parsed, answer: Parsed) -> tuple[Parsed, Parsed]:
    """Both in the same form; math-verify compares some pairs of different forms wrongly or not at all."""
    if _is_number(gold) and _is_number(answer):
        # Of 928 and 9.28 x 10^2, math-verify would round only one.
        rounds = (gold.is_Integer or answer.is_Integer) and (gold.has(sympy.Float) or answer.has(sympy.Float))
        return (gold.evalf(30), answer.evalf(30)) if rounds else (gold, answer)
    if isinstance(gold, FiniteSet):
        parts = gold._unsorted_args
        names = {str(part.lhs).partition("_")[0] if isinstance(part, sympy.Eq) else "" for part in parts}
        is_pair = isinstance(answer, sympy.Interval) and answer.is_open
        has_order = isinstance(answer, sympy.Tuple) or is_pair  # (2, 1) is no list of 1 and 2
        if has_order or (len(names) == len(parts) > 1 and not answer.has(sympy.Eq)):  # nor is it k = 1, n = 2
            values = sympy.Tuple(*(part.rhs if isinstance(part, sympy.Eq) else part for part in parts))
            given = answer.args[:2] if is_pair else getattr(answer, "_unsorted_args", answer.args)
            return values, sympy.Tuple(*given)
    return _solutions(gold) or gold, _solutions(answer) or answer


def _solutions(parsed: Parsed) -> sympy.Set | None:
    """The numbers that several inequalities describe: those of all of them, or of each if they exclude each other."""
    if not isinstance(parsed, FiniteSet) or not all(isinstance(part, (Relational, sympy.And)) for part in parsed):
        return None
    if len(parsed.free_symbols) != 1 or parsed.has(sympy.Eq):
        return None
    sets = [part.as_set() for part in parsed]
    common = sympy.Intersection(*sets)
    return sympy.Union(*sets) if common.is_empty else common


def _close(gold: Parsed, answer: Parsed) -> bool:
    """False for numbers that are equal only because both were rounded to 0."""
    if not (_is_number(gold) and _is_number(answer)) or gold == answer:
        return True
    return bool(abs((gold - answer).doit().evalf()) <= RELATIVE_TOLERANCE * abs(gold.doit().evalf()))


def _other_equation(gold: Parsed, answer: Parsed) -> bool:
    """Whether these are equations, and neither is a multiple of the other by a number.

    math-verify solves for one variable, and so finds x^2 y = 0 and x y = 0 equal.
    """
    equations = [one for one in (gold, answer) if isinstance(one, sympy.Eq)]
    if len(equations) < 2 or not all(isinstance(side, sympy.Expr) for one in equations for side in one.args):
        return False
    left, right = (sympy.fraction(sympy.together(one.lhs - one.rhs))[0] for one in equations)
    return right != 0 and bool(sympy.cancel(left / right).free_symbols)
