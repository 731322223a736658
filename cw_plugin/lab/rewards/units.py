r"""Whether an answer names another unit than its ground truth, or says a word that makes another number of it."""

import re

from cw_plugin.lab.rewards.reading import Answer, right_sides

_POWERS = "squared|cubed|factorial|(?:root|square|cube|multiple|inverse|reciprocal|opposite) of"
_PARTS = r"hal(?:f|ve)|quarter|third|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand)th"
_MULTIPLES = (
    r"dozen|pair|couple|score|gross|twice|thrice|doubled?|halved|tripled?|quadrupled?"
    r"|ten|hundred|thousand|\w+illion|bn|mil|per ?mille|lakh|crore"
)
COMPARED_WITH = "than|over|under|never|below|above|beyond|past|exceed(?:s|ing)?|unequal|within|between"
_COMPARISONS = rf"at|less|more|fewer|greater|up|{COMPARED_WITH}"
SCALES = rf"{_POWERS}|{_PARTS}|{_MULTIPLES}"
_OPERATIONS = r"times?\s\w+|divided|multiplied|choose|sqrt"  # 5 times may be how often
_FUNCTIONS = (
    "floor|ceiling|absolute value|log|logarithm|roots?|squares?|cubes?|powers?|multiples?|divisors?|factors?"
    "|digits?|conjugate|inverse|reciprocal|opposite|negative|half|thirds?|quarters?"
)
FUNCTION_OF = rf"\b(?:(?:{_FUNCTIONS}) of|(?:divisible|divided|multiplied) by|(?:different|far|away) from|non)\b"
_OTHERS = (
    "base|mod|minu|negative|plu|without|except|excluding|but|no|none|not|cannot|and|or|so|unless|wrong|incorrect|false"
    "|th power|rejected|extraneou|invalid|impossible"
)
_SYMBOLS = "alpha|beta|gamma|delta|theta|lambda|sigma|infinity|modulo|(?:sin|cos|tan|log|sqrt)[a-z]"
_UPRIGHT_FUNCTIONS = (  # that LaTeX has no command for, and that are no units
    "(?:arc)?c?tg|(?:arc)?cotg?|cosec|arc(?:sec|csc)|ar(?:sin|cos|tan|cot)h|sech|csch|cis|erf|sgn|abs|floor|ceil|cbrt|ln|log"
)
_IN_CHINESE = (  # per mille, times, half, more than, above, below, about, up to, or, and, not, negative, a tenth, dozen
    r"[\u2030\u500d\u534a\u591a\u4f59\u4e0a\u4e0b\u7ea6\u81f3\u6216\u548c\u4e0d\u8d1f\u8ca0\u6298\u6253\u9664\u975e\u8d85]"
    r"|\u6839[\u53f7\u865f]|\u7684[\u5e73\u7acb]\u65b9|\u6b21\u65b9|\u9636\u4e58|\u7b2c|[\u5927\u5c0f\u5c11\u9ad8\u4f4e]\u4e8e"
)
_OTHER_NUMBER = re.compile(
    r"(?<!\^)(?<!\^-)\d"  # in m^2 and s^{-1}, the digit belongs to the unit
    rf"|\b(?:{SCALES}|{_COMPARISONS}|{_OPERATIONS}|{_SYMBOLS}|{_UPRIGHT_FUNCTIONS}|{_OTHERS})s?\b|{_IN_CHINESE}"
    rf"|{FUNCTION_OF}\W*$"
)
_FUNCTION_OF_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)|(?:cis|c?tg|sen|cosec|cotg)(?![a-zA-Z])")
_BEFORE = re.compile(  # how a left side in words ends; or a factor, summand or sign, which makes another number
    rf"^\W*(?:text\w*\W*)?at (?:least|most)\W*$|{FUNCTION_OF}\W*$"
    rf"|\b(?:{_COMPARISONS}|unequal to|(?<!is )equal to|minus|plus|no|not|wrong|negative|incorrect|except|base"
    r"|root|sin|cos|tan|log|ln|half|about|twice|thrice|double|triple|quadruple)\W*$"
    r"|^\s*(?:-|\d+(?:\.\d+)?)\s*(?:\\(?:cdot|times|,)\s*|[+*-]\s*)?\\text\w*\{[A-Z]|\}\s*[-+*/]\s*\d+\W*$"
    r"|^\s*\\[dt]?frac\s*\{\s*\\text.*\{\d+\}\s*$"
)


def is_said_before_another_number(name: str) -> bool:
    """Whether a left side in words, as in "at least: 5", makes another number of the one after it."""
    return _BEFORE.search(name) is not None


def are_other_units(expected: Answer, given: Answer) -> bool:
    """Whether the words beside their numbers differ. A mere unit may be on one side only."""
    sides = right_sides(expected.text), right_sides(given.text)
    some_is_no_degree = expected.whole.count("degree") != given.whole.count("degree")
    if some_is_no_degree and _FUNCTION_OF_ANGLE.search("".join(sides)):
        return True
    percentages = [side.count(r"\%") for side in sides]
    if all(percentages) and percentages[0] != percentages[1]:
        return True
    words = [expected.words, given.words]
    if re.search(r"\b[ap]m\b", " ".join(words)) and (":" in sides[0]) != (":" in sides[1]):  # 7:15 PM is no 7/15
        return True
    if (r"\%" in expected.text) != (r"\%" in given.text):
        words = [side.words or ("%" if r"\%" in side.text else "") for side in (expected, given)]
    return words[0] != words[1] and bool(all(words) or _OTHER_NUMBER.search("".join(words)))
