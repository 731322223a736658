r"""Finds the boxed answer of a text in a single pass, even over hostile text; and numbers as text."""

import math
import numbers
import re
from decimal import Decimal
from typing import Any

_TOKENS = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
# What may stand between two boxes of one list: a separator, "and" or "or", and words or a name that say which part is
# meant ("for part (a) and", "if n is even, and", "apples and", "and y_2 =").
_MAX_JOINT = 70  # characters; longer text is never a joint
_LAYOUT = re.compile(r"\\(?:text|textrm|mathrm|mbox|quad|qquad)(?![a-zA-Z])|\\[()\[\],;:! \\]|[{}$*~&\s]+")
_JOINT = re.compile(
    r"(?:(?:\(?(?:for|in|if|when) [^.,;?!]+|[a-z]+)[,;]? (?=(?:and|or)\b))?"
    r"[,; ]*(?:(?:and|or)\b)?[,; ]*(?:\\?[a-zA-Z]+(?:_ ?\w+)?(?:\(\w+\))? ?=)?"
)


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None; "" if the last one is never closed, since the answers before it were given up. A list of
    boxes is one answer with several parts, not several guesses. A box that is repeated counts once. Of boxes in boxes,
    the innermost counts.
    """
    boxes: list[tuple[int, int, str]] = []
    opened: list[re.Match[str]] = []
    for token in _TOKENS.finditer(text):
        if token.lastgroup in ("box", "open"):
            opened.append(token)
        elif token.lastgroup == "close" and opened:
            opening = opened.pop()
            if opening.lastgroup == "box" and not (boxes and boxes[-1][0] > opening.start()):
                boxes.append((opening.start(), token.end(), text[opening.end() : token.start()].strip()))
    last = boxes[-1][0] if boxes else -1
    if any(token.lastgroup == "box" and token.start() > last for token in opened):
        return ""
    parts: list[str] = []
    following = 0
    for start, end, content in reversed(boxes):
        if parts and not _is_joint(text[end:following]):
            break
        parts.insert(0, content)
        following = start
    return ", ".join(parts if len(set(parts)) > 1 else parts[:1]) if parts else None


def _is_joint(between: str) -> bool:
    return len(between) <= _MAX_JOINT and bool(_JOINT.fullmatch(" ".join(_LAYOUT.sub(" ", between).split())))


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)  # numpy's are numbers.Real
    return str(value).removesuffix(".0") if is_number and math.isfinite(value) else None
