r"""What an answer leaves to be worked out: math-verify compares values, so ``37 \cdot 43`` equals 1591."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sympy
from sympy.core.relational import Relational

Parsed: TypeAlias = sympy.Basic | sympy.MatrixBase
"""What math-verify reads in an answer."""

# Operations by their commands, because math-verify carries some of them out while it reads (\binom, \det, \gcd).
_COMMANDS = re.compile(
    r"\\(?:(sum|prod|i*nt|oint|lim|gcd|lcm|det|max|min|[lr]?floor|[lr]?ceil|Gamma)|[dt]?(binom|choose)|[bp]?(mod))"
    r"(?![a-zA-Z])|(?<!\\)(!)(?!=)|\{([vV]matrix)\}|\b(gcd|lcm|det|max|min|floor|ceil|mod)\b"
)
_NESTED = re.compile(r"frac\s*\{[^{}]*\\[dt]?frac|\}\s*\{[^{}]*\\[dt]?frac")
_LOGARITHM = re.compile(r"(?<![a-zA-Z])(ln|log|lg|exp)(?![a-zA-Z])")


def unfinished(text: str, parsed: Parsed) -> set[str]:
    """The kinds of operations that an answer leaves to be carried out; none for a number that is written out.

    Written out are digits with a sign, a decimal point or one fraction, also one that can be reduced, times a power of
    ten, and what cannot be written with digits alone: roots, pi, logarithms. The kind "irrational" stands for the
    latter, since the root of 16 is no way to write 4; "letters" for what may cancel, as in 5x/x.
    """
    kinds = {"".join(names) for names in _COMMANDS.findall(text)}
    if len(re.findall(r"\\begin\s*\{[a-zA-Z]*(?:matrix|array)\}", text)) > 1:
        kinds.add("matrices")
    if isinstance(parsed, sympy.Rational) and _NESTED.search(text):  # math-verify has reduced it
        kinds.add("product")
    if isinstance(parsed, sympy.Rational) and _LOGARITHM.search(text):  # sympy has simplified e^{\ln 5}
        kinds.add("irrational")
    for side in [side for member in members(parsed) for side in _sides(member)]:
        if not side.free_symbols:
            kinds.update(*map(_arithmetic, sympy.preorder_traversal(side)))
            if side.has(sympy.Function, sympy.NumberSymbol, sympy.exp) or any(map(_is_root, side.atoms(sympy.Pow))):
                kinds.add("irrational")
        elif not side.is_Symbol:
            kinds.add("letters")
    return kinds


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


def _sides(member: sympy.Expr | Relational) -> Sequence[sympy.Expr]:
    """The answer of an equation, which stands on its right; both sides of an inequality; an expression itself."""
    if isinstance(member, sympy.Eq):
        return [member.rhs]
    return member.args if isinstance(member, Relational) else [member]


def _is_root(node: sympy.Pow) -> bool:
    return not node.exp.is_Integer


def _arithmetic(node: sympy.Basic) -> set[str]:
    """The kind of an operation between rational numbers that are not one number written out."""
    if isinstance(node, sympy.Add):
        return {"addition"} if sum(_count(term) is not None for term in _parts(node)) > 1 else set()
    if isinstance(node, sympy.Pow) and _count(node) == (2, 0, 0):
        return {"power"}
    if isinstance(node, (sympy.Mul, sympy.Pow)):
        counts = [count for factor in _parts(node) if (count := _count(factor)) is not None]
        return {"product"} if max(map(sum, zip(*counts, strict=True)), default=0) > 1 else set()
    return set()


def _parts(node: sympy.Basic) -> Iterator[sympy.Basic]:
    """The terms of a sum or the factors of a product, also of one within brackets; a power itself."""
    for part in [node] if isinstance(node, sympy.Pow) else node.args:
        yield from _parts(part) if type(part) is type(node) and not isinstance(node, sympy.Pow) else [part]


def _count(node: sympy.Basic) -> tuple[int, int, int] | None:
    """How many numbers other than 1 stand above and below a fraction bar, and how many powers of ten; None for a root.

    The number itself is written out if none of these is greater than 1.
    """
    if isinstance(node, sympy.Rational):
        return int(abs(node) != 1), int(node.q != 1), 0
    if isinstance(node, sympy.Number):
        return 1, 0, 0
    if isinstance(node, sympy.Pow) and node.exp.is_Integer and (base := _count(node.base)) is not None:
        if node.base == 10:
            return 0, 0, 1
        return (base[1], base[0], base[2]) if node.exp == -1 else (2, 0, 0)
    if isinstance(node, (sympy.Mul, sympy.Add)):
        counts = [count for part in _parts(node) if (count := _count(part)) is not None]
        if len(counts) == len(list(_parts(node))):
            above, below, tens = map(sum, zip(*counts, strict=True))
            return (above, below, tens) if isinstance(node, sympy.Mul) else (1, 0, 0)
    return None
