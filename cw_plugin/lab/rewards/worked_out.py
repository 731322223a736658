r"""Whether an answer is worked out as far as its ground truth: 37 \cdot 43 is no answer where 1591 is asked for."""

import re

import sympy
from math_verify.grader import is_equation, take_last_relation

from cw_plugin.lab.rewards.reading import Parsed, right_sides

_UNDONE = (sympy.Symbol, sympy.MatAdd, sympy.MatMul, sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
_COMPUTED_BY_READING = re.compile(
    r"binom\s*(?:\d|\{\s*\d+\s*\})|\\choose|\\\||frac\s*\{[^}]*\\frac|e\s*\^\s*\{?\\l(?:n|og)"
    r"|vmatrix"  # a determinant
    r"|&[\s\S]*\\\\[\s\S]*matrix\}\s*\^\s*\{?T"  # a transposed matrix that is no vector
    r"|(?<=[\\{])(?:det|gcd|lcm|Gamma|tr|trace|rank|rref|norm|eye|zeros|ones|diag|[hv]stack)(?![a-zA-Z])"
)


def computed_by_reading(text: str) -> set[str]:
    """The operations of an answer that latex2sympy works out as it reads, so that no value shows them."""
    return set(_COMPUTED_BY_READING.findall(right_sides(text)))


def is_worked_out(gold: Parsed, value: Parsed, may_leave_sum: bool) -> bool:
    """Whether the answer leaves no operation that the ground truth does not leave; sums of letters may stay."""
    kept = _left(gold)
    if kept & {sympy.Add, sympy.Mul}:  # half of a sum may be written as a quotient or as a product
        kept |= {sympy.Mul, sympy.Pow}
    if may_leave_sum:
        kept |= {sympy.Add, sympy.MatAdd, sympy.MatMul}
    if sympy.Symbol in kept or (isinstance(gold, sympy.Eq) and not gold.lhs.is_Symbol):
        kept |= {sympy.Symbol, sympy.Add, sympy.Mul, sympy.Pow}
    return _left(value) <= kept


def _left(value: Parsed) -> set[type]:
    r"""What is left to be worked out: operations on numbers with a rational result, as 37 \cdot 43; sums; letters."""
    if is_equation(value):
        return _left(take_last_relation(value).rhs)
    left: set[type] = set().union(*map(_left, value.args))
    if isinstance(value, _UNDONE) or _is_undone(value):
        left.add(type(value))
    return left


def _is_undone(value: Parsed) -> bool:
    """Whether the outermost operation is one on numbers that has a rational result, and not just a way to write it."""
    numbers = [part for part in value.args if part not in (1, -1) and _is_rational(part)]
    if isinstance(value, sympy.Mul):
        return _is_undone_product(value, numbers)
    if isinstance(value, sympy.Add) and len(numbers) > 1:
        return True
    if isinstance(value, sympy.UnevaluatedExpr) or _is_written_power(value):
        return False
    return bool(value.args) and _is_rational(value)


def _is_undone_product(value: sympy.Mul, numbers: list[Parsed]) -> bool:
    r"""Unlike 3 \cdot 10^5, 50\% and 1.5/2, which have a number, and at most one power or denominator."""
    powers = [part for part in numbers if isinstance(part, (sympy.Pow, sympy.UnevaluatedExpr))]
    if len(powers) > 1 or len(numbers) - len(powers) > 1:
        return True
    has_irrational_factor = not all(map(_is_rational, value.args))
    return has_irrational_factor and _is_rational(value)  # \sqrt{2} \cdot \sqrt{8}


def _is_written_power(value: Parsed) -> bool:
    """Whether it is a power of ten or a denominator, with the digits of its base written out."""
    if not isinstance(value, sympy.Pow) or (value.base != 10 and value.exp != -1):
        return False
    return bool(value.exp.is_Integer) and isinstance(value.base, (sympy.Integer, sympy.Float))


def _is_rational(value: Parsed) -> bool:
    """Whether it is a number with a rational value, decimals included."""
    if not isinstance(value, sympy.Expr) or not value.is_number:
        return False
    exact = sympy.nsimplify(value, rational=True).doit().expand() if value.is_rational is None else value
    if exact.is_rational is not None:
        return bool(exact.is_rational)
    digits = exact.evalf(50, chop=True)  # sympy does not know that \sqrt{7+4\sqrt3} + \sqrt{7-4\sqrt3} is 4
    if not digits.is_comparable:
        return False
    fraction = sympy.Rational(digits).limit_denominator(10**12)
    return bool(abs((exact - fraction).evalf()) < 1e-40)
