r"""The form of an answer: operations still to be carried out, the base of a number, the unit.

math-verify compares values. So ``37 \cdot 43`` equals 1591, and ``101_3`` equals ``101_2``, of which it drops the base.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sympy
from sympy.core.relational import Relational

Parsed: TypeAlias = sympy.Basic | sympy.MatrixBase
"""What math-verify reads in an answer."""

# Operations by their commands, because math-verify carries some of them out while it reads (\binom, \det, \gcd).
_COMMANDS = re.compile(
    r"\\(?:(sum|prod|i*nt|oint|lim|gcd|lcm|det|max|min|[lr]?floor|[lr]?ceil|Gamma)|[dt]?(binom)|[bp]?(mod))(?![a-zA-Z])"
    r"|(?<!\\)(!)|\{([vV]matrix)\}|\b(gcd|lcm|det|max|min|floor|ceil|mod)\b"
)

_NESTED = re.compile(r"frac\s*\{[^{}]*\\[dt]?frac|\}\s*\{[^{}]*\\[dt]?frac")

_BASE = re.compile(r"(\d\s*\)?)\s*_\s*(?:(\d+)|\{\s*(?:\\text\s*\{)?\s*(?:base\s*)?\(?(\w+)\)?\s*\}?\s*\})")
_BASE_WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
               "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}  # fmt: skip

# By their singular; a plural ends with s.
_NAMES = """second sec s; minute min; hour hr h; day; week; month; year yr; mm millimeter millimetre; cm centimeter
centimetre; m meter metre; km kilometer kilometre; inch inche in; foot feet ft; yard yd; mile mi; gram g; kg kilogram;
pound lb; ounce oz; cent; dollar; unit"""
_UNITS = {name: names.split()[0] for names in _NAMES.split(";") for name in names.split()}
_LENGTHS = {"mm", "cm", "m", "km", "inch", "foot", "yard", "mile"}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
# A word after a number, also divided by others (km/h); m and s count only within \text, since they are also names of
# variables.
_UNIT = re.compile(
    r"(?<=[\d})])(?:\\[,;: ]|[\s~])*"
    r"(?:(?P<text>\\(?:text|textrm|textbf|textnormal|mathrm|mbox|rm)\s*\{\s*)|(?=[a-zA-Z]{2}))"
    r"(?:(?P<power>square|sq|cubic|cu)\b\.?\s*)?(?P<word>[a-zA-Z]+)\b\.?(?P<below>(?:\s*/\s*[a-zA-Z]+)*)"
    r"(?(text)\s*\}?)\s*(?:\^\s*\{?\s*(?P<exponent>[23]))?"
)


def operations(text: str, parsed: Parsed) -> set[str]:
    """What an answer leaves to be worked out; empty for a number that is written out.

    Written out are digits with a sign, a decimal point or one fraction, also one that can be reduced, times a power of
    ten, and what cannot be written with digits alone: roots, pi, logarithms. The kind "irrational" stands for the
    latter, since the root of 16 is not a way to write 4; "letters" for what cancels, as in 5x/x.
    """
    kinds = {"".join(names) for names in _COMMANDS.findall(text.replace(r"\choose", r"\binom"))}
    if len(re.findall(r"\\begin\s*\{[a-zA-Z]*(?:matrix|array)\}", text)) > 1:
        kinds.add("matrices")
    if isinstance(parsed, sympy.Rational) and _NESTED.search(text):  # math-verify has reduced it
        kinds.add("product")
    if re.search(r"(?<![a-zA-Z])(ln|log|lg|exp)(?![a-zA-Z])", text):  # sympy has simplified e^{\ln 5}
        kinds.add("irrational")
    for side in [side for member in members(parsed) for side in _sides(member)]:
        if not side.free_symbols:
            kinds.update(*map(_arithmetic, sympy.preorder_traversal(side)))
        elif not side.is_Symbol:
            kinds.add("letters")
    return kinds


def _sides(member: sympy.Expr | Relational) -> Sequence[sympy.Expr]:
    """The answer of an equation, which stands on its right; both sides of an inequality; an expression itself."""
    if isinstance(member, sympy.Eq):
        return [member.rhs]
    return member.args if isinstance(member, Relational) else [member]


def members(parsed: Parsed) -> Iterator[sympy.Expr | Relational]:
    """The parts of lists, matrices, intervals and assignments, also within each other; of anything else, the whole."""
    if isinstance(parsed, sympy.Eq) and parsed.lhs.is_Symbol:
        yield from members(parsed.rhs)
    elif isinstance(parsed, sympy.And):  # a = b = c
        yield from members(parsed.args[-1])
    elif isinstance(parsed, (sympy.Expr, Relational)):
        yield parsed
    else:
        for part in parsed if isinstance(parsed, sympy.MatrixBase) else parsed.args:
            yield from members(part)


def _arithmetic(node: sympy.Basic) -> set[str]:
    if _is_rational(node):
        parts = list(sympy.preorder_traversal(node))
        tens = [part for part in parts if _is_power_of_ten(part)]
        fractions = [part for part in parts if part not in tens and _is_fraction(part)]
        if len(tens) > 1 or len(fractions) > 1:
            return {"product"}
    if isinstance(node, sympy.Add) and sum(map(_is_rational, _parts(node))) > 1:
        return {"addition"}
    if isinstance(node, sympy.Mul):
        factors = [factor for factor in _parts(node) if factor != -1 and not _is_power_of_ten(factor)]
        below = [factor.base for factor in factors if isinstance(factor, sympy.Pow) and factor.exp == -1]
        above = [factor for factor in factors if not (isinstance(factor, sympy.Pow) and factor.exp == -1)]
        has_product = any(sum(map(_is_rational, part)) > 1 for part in (above, below))
        return {"product"} if has_product else set()
    if isinstance(node, sympy.Pow) and _is_rational(node.base) and node.exp != -1 and not _is_power_of_ten(node):
        return {"power" if node.exp.is_Integer else "irrational"}
    if isinstance(node, (sympy.Function, sympy.NumberSymbol)):
        return {"irrational"}
    return set()


def _parts(node: sympy.Basic) -> Iterator[sympy.Basic]:
    """The terms of a sum or the factors of a product, also of one within brackets."""
    for part in node.args:
        yield from _parts(part) if type(part) is type(node) else [part]


def _is_rational(node: sympy.Basic) -> bool:
    """Whether this consists of digits and of operations that keep a number rational."""
    return all(
        isinstance(part, (sympy.Number, sympy.Add, sympy.Mul)) or (isinstance(part, sympy.Pow) and part.exp.is_Integer)
        for part in sympy.preorder_traversal(node)
    )


def _is_fraction(node: sympy.Basic) -> bool:
    return (isinstance(node, sympy.Pow) and node.exp.is_negative) or (isinstance(node, sympy.Rational) and node.q > 1)


def _is_power_of_ten(node: sympy.Basic) -> bool:
    return isinstance(node, sympy.Pow) and node.base == 10 and bool(node.exp.is_Integer)


def split_bases(text: str) -> tuple[str, list[str]]:
    r"""A text without its numbers' bases, and these: ``101`` and ``["2"]`` of ``101_2`` and of ``101_{\text{two}}``."""
    found = [plain or word for _, plain, word in _BASE.findall(text)]
    return _BASE.sub(r"\1", text), [_BASE_WORDS.get(base, base) for base in found]


def units_agree(one: str, other: str) -> bool:
    """False if both texts name units, and different ones. A word that is no known unit agrees with every unit."""
    first, second = _units(one), _units(other)
    if any(name == "unit" for name, _ in first | second):  # "square units" are square centimetres, but not days
        first, second = _lengths_as_units(first), _lengths_as_units(second)
    return not first or not second or first == second


def without_units(text: str) -> str:
    """The text without the units that are known."""
    return _UNIT.sub(lambda match: "" if _known(match["word"]) else match[0], text)


def _units(text: str) -> set[tuple[str, str]]:
    """The units of a text and their powers: ``("cm", "2")`` of 5 square centimetres, ``("km/hour", "1")`` of 5 km/h."""
    units = set()
    for match in _UNIT.finditer(text):
        name = _known(match["word"])
        if name:
            below = [_known(word) or word for word in re.findall("[a-zA-Z]+", match["below"])]
            units.add(("/".join([name, *below]), _POWERS.get(match["power"], match["exponent"] or "1")))
    return units


def _lengths_as_units(units: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {("unit" if name in _LENGTHS else name, power) for name, power in units}


def _known(word: str) -> str | None:
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))


def depths(text: str) -> list[int]:
    """In how many brackets, of any kind, each character stands."""
    steps = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
    return list(itertools.accumulate(steps.get(character, 0) for character in text))


def last_side(text: str) -> str:
    r"""What stands right of the last ``=`` that is in no brackets, which is the answer; all of a list."""
    outside = [place for place, depth in enumerate(depths(text)) if depth == 0 and text[place] in ",="]
    is_list = any(text[place] == "," for place in outside)
    return text if is_list or not outside else text[outside[-1] + 1 :]
