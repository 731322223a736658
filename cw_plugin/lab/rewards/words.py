r"""The words of an answer: units, which must agree, and words that make another number, such as "or more"."""

import re

from sympy.physics import units

from cw_plugin.lab.rewards.rewrites import GAP, TEXT

_WORDS = re.compile(
    rf"{GAP}(?:{TEXT}\{{(?P<text>(?:[^{{}}]|\{{[^{{}}]*\}})*)\}}(?P<power>\s*\^\s*(?:\d|\{{\d\}}))?"
    rf"|(?P<script>[^\x00-\x7f]+)){GAP}"
)
_CHANGES = re.compile(
    r"(?<![\^{\-a-z])\d+|\b(?:squared|cubed|factorial|hal(?:f|ves)|quarter|third|fourth|fifth|sixth|seventh|eighth|ninth"
    r"|tenth|hundredth|thousandth|dozen|pair|couple|score|gross|twice|double|triple|base|mod|not|no|at least|at most"
    r"|less than|more than|hundred|thousand|million|billion|trillion|(?:and|or)\b.*)s?\b"
    r"|[\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d]"  # times, half, some, over, up to, or, not
)
_UNIT = re.compile(r"(?:\b(square|sq|cubic|cu)\b\.?\s*)?([a-zA-Z]+)\.?(?:\s*\^\s*\{?\s*(\d))?")
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_SHORT = {"sec": "second", "min": "minute", "hr": "hour", "in": "inch", "lb": "pound", "usd": "dollar", "eur": "euro"}
_NOT_IN_SYMPY = {"week", "month", "ounce", "gallon", "dollar", "cent", "euro", "mph", "unit"}


def split_words(answer: str) -> tuple[str, str]:
    r"""An answer without its words, and these: ``12`` and ``km/h`` of ``12\text{ km/h}``.

    Words in an index stay there. An answer with words between two numbers, such as 5 feet 3 inches, is all words.
    """
    found: list[str] = []
    kept = ""
    end = 0
    for match in _WORDS.finditer(answer):
        kept += answer[end : match.start()]
        end = match.end()
        if kept.endswith(("_", "_{", "^", "^{")):
            kept += match[0]
        elif kept[-1:].isalnum() and re.match(r"\w|\\frac|\\sqrt", answer[end:]):
            return "", answer
        else:
            kept += " "
            found.append((match["script"] or match["text"]) + (match["power"] or ""))
    return (kept + answer[end:]).strip(), " ".join(found)


def changes(words: str) -> list[str]:
    """The words that make another number of the one beside them, or several."""
    numerals = [character for character in words if not character.isascii() and character.isnumeric()]
    return _CHANGES.findall(words.lower()) + numerals


def units_agree(one: str, other: str) -> bool:
    """False if both name units, and different ones. A word that is no known unit agrees with every unit."""
    first, second = _units(one), _units(other)
    if any(unit == "unit" for unit, _ in first | second):  # "square units" are square centimetres, but not days
        first, second = _without_lengths(first), _without_lengths(second)
    return not first or not second or first == second


def _units(words: str) -> set[tuple[object, str]]:
    """The known units and their powers: ``{(kilometer, "1"), (hour, "1")}`` of km/h."""
    found = _UNIT.findall(words)
    return {(unit, _POWERS.get(word, power or "1")) for word, name, power in found if (unit := _known(name))}


def _known(name: str) -> object:
    """A unit by its name or its abbreviation, in one or many; None if there is none."""
    singular = name if len(name) < 3 else name.lower().removesuffix("s")
    singular = _SHORT.get(singular, singular).replace("metre", "meter").replace("litre", "liter")
    if singular in _NOT_IN_SYMPY:
        return singular
    unit = getattr(units, singular, getattr(units, name, None))
    return unit if isinstance(unit, units.Quantity) else None


def _without_lengths(named: set[tuple[object, str]]) -> set[tuple[object, str]]:
    lengths = {unit for unit, _ in named if isinstance(unit, units.Quantity) and unit.dimension == units.length}
    return {("unit" if unit in lengths else unit, power) for unit, power in named}
