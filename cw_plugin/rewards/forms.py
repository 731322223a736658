r"""The form of an answer: operations still to be carried out, the base of a number, the unit.

math-verify compares values. So ``37 \cdot 43`` equals 1591, and ``101_3`` equals ``101_2``, of which it drops the base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import sympy

# Operations by their commands, because math-verify carries some of them out while it reads (\binom, \det, \gcd).
_COMMANDS = re.compile(
    r"\\(sum|prod|i*nt|oint|lim|[dt]?binom|choose|gcd|lcm|det|max|min|[lr]?floor|[lr]?ceil|[bp]?mod|Gamma)(?![a-zA-Z])"
    r"|(?<!\\)(!)|\{([vV]matrix)\}|\b(gcd|lcm|det|max|min|floor|ceil|mod)\b"
)
_MATRIX = re.compile(r"\\begin\s*\{[a-zA-Z]*(?:matrix|array)\}")
_SPELLINGS = {"dbinom": "binom", "tbinom": "binom", "choose": "binom", "bmod": "mod", "pmod": "mod"}

BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)

_BASE = re.compile(r"(\d\s*\)?)\s*_\s*(?:(\d+)|\{\s*(?:\\text\s*\{)?\s*(?:base\s*)?\(?(\w+)\)?\s*\}?\s*\})")
_BASE_WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
               "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}  # fmt: skip

_NAMES = {
    "second": "seconds sec secs s", "minute": "minutes min mins", "hour": "hours hr hrs h", "day": "days",
    "week": "weeks", "month": "months", "year": "years yr yrs", "mm": "millimeter millimeters", "cm": "centimeter "
    "centimeters centimetre centimetres", "m": "meter meters metre metres", "km": "kilometer kilometers kilometre "
    "kilometres", "inch": "inches in", "foot": "feet ft", "yard": "yards yd", "mile": "miles mi", "gram": "grams g",
    "kg": "kilogram kilograms", "pound": "pounds lb lbs", "ounce": "ounces oz", "cent": "cents", "dollar": "dollars",
    "unit": "units",
}  # fmt: skip
_UNITS = {spelling: unit for unit, names in _NAMES.items() for spelling in [unit, *names.split()]}
_LENGTHS = {"mm", "cm", "m", "km", "inch", "foot", "yard", "mile", "unit"}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
# A word after a number; m and s count only within \text, since they are also names of variables.
_UNIT = re.compile(
    r"(?<=[\d})])(?:\\[,;: ]|[\s~])*(?:\\(?:text|textrm|textbf|textnormal|mathrm|mbox|rm)\s*\{\s*|(?=[a-zA-Z]{2}))"
    r"(?:(square|sq|cubic|cu)\b\.?\s*)?([a-zA-Z]+)\b\.?\s*\}?\s*(?:\^\s*\{?\s*([23]))?"
)


def operations(text: str, parsed: Any) -> set[str]:
    """What an answer leaves to be worked out; empty for a number that is written out.

    Written out are digits with a sign, a decimal point or one fraction, times a power of ten, and what cannot be
    written with digits alone: roots, pi, logarithms. The kind "irrational" stands for the latter, since the root of 16
    is not a way to write 4.
    """
    found = {next(name for name in match if name) for match in _COMMANDS.findall(text)}
    kinds = {_SPELLINGS.get(name, name) for name in found}
    if len(_MATRIX.findall(text)) > 1:
        kinds.add("matrices")
    for number in _numbers(parsed):
        for node in sympy.preorder_traversal(number):
            kinds.update(_arithmetic(node))
    return kinds


def _numbers(parsed: Any) -> Iterator[sympy.Expr]:
    """The numbers in an answer: itself, or the members of its lists, matrices and equations' right-hand sides."""
    if isinstance(parsed, sympy.MatrixBase):
        members = list(parsed)
    elif isinstance(parsed, sympy.Expr):
        members = []
        if not parsed.free_symbols:
            yield parsed
    else:
        members = [parsed.args[-1]] if isinstance(parsed, (sympy.Eq, sympy.And)) and parsed.args else parsed.args
    for member in members:
        yield from _numbers(member)


def _arithmetic(node: Any) -> Iterator[str]:
    if isinstance(node, sympy.Add) and sum(map(_is_rational, _parts(node))) > 1:
        yield "sum"
    elif isinstance(node, sympy.Mul):
        factors = [factor for factor in _parts(node) if factor != -1 and not _is_power_of_ten(factor)]
        below = [factor for factor in factors if isinstance(factor, sympy.Pow) and factor.exp == -1]
        above = [factor for factor in factors if factor not in below]
        if sum(map(_is_rational, above)) > 1 or sum(_is_rational(factor.base) for factor in below) > 1:
            yield "product"
    elif isinstance(node, sympy.Pow) and _is_rational(node.base) and node.exp != -1 and not _is_power_of_ten(node):
        yield "power" if node.exp.is_Integer else "irrational"
    elif isinstance(node, (sympy.Function, sympy.NumberSymbol)):
        yield "irrational"


def _parts(node: Any) -> Iterator[Any]:
    """The terms of a sum or the factors of a product, also of one within brackets."""
    for part in node.args:
        yield from _parts(part) if type(part) is type(node) else [part]


def _is_rational(node: Any) -> bool:
    """Whether this consists of digits and of operations that keep a number rational."""
    if isinstance(node, sympy.Pow):
        return bool(node.exp.is_Integer) and _is_rational(node.base)
    return isinstance(node, (sympy.Rational, sympy.Float)) or (
        isinstance(node, (sympy.Add, sympy.Mul)) and all(map(_is_rational, node.args))
    )


def _is_power_of_ten(node: Any) -> bool:
    return isinstance(node, sympy.Pow) and node.base == 10 and bool(node.exp.is_Integer)


def split_bases(text: str) -> tuple[str, list[str]]:
    r"""A text without its numbers' bases, and these: ``101`` and ``["2"]`` of ``101_2`` and of ``101_{\text{two}}``."""
    found = [plain or word for _, plain, word in _BASE.findall(text)]
    return _BASE.sub(r"\1", text), [_BASE_WORDS.get(base, base) for base in found]


def units_agree(one: str, other: str) -> bool:
    """False if both texts name units, and different ones. A word that is no known unit agrees with every unit."""
    first, second = _units(one), _units(other)
    if any(name == "unit" for name, _ in first | second):  # "square units" are square centimetres, but not days
        first, second = ({("unit" if name in _LENGTHS else name, power) for name, power in them}
                         for them in (first, second))  # fmt: skip
    return not first or not second or first == second


def _units(text: str) -> set[tuple[str, str]]:
    found = _UNIT.findall(text)
    return {(_UNITS[word], _POWERS.get(power, exponent or "1")) for power, word, exponent in found if word in _UNITS}


def last_side(text: str) -> str:
    r"""What stands right of the last ``=`` that is in no brackets, which is the answer; all of a list."""
    depth = start = 0
    for position, character in enumerate(text):
        depth += BRACKETS.get(character, 0)
        if depth == 0 and character == ",":
            return text
        if depth == 0 and character == "=":
            start = position + 1
    return text[start:]
