r"""The boxed answer of a text, and numbers as text."""

import math
import numbers
import re
from decimal import Decimal
from typing import Any

_TOKENS = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\[{}]|(?P<open>\{)|(?P<close>\})")
_SPACE = re.compile(r"(?:\\q?quad(?![a-zA-Z])|\s)+")
NEAR, FAR = 10, 70  # characters between two boxes, as in math-verify


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None; "" if the last one is never closed, since the answers before it were given up. As in
    math-verify, two boxes are a list if next to nothing stands between them (here, no full stop either), or little with
    a comma, a semicolon, "and" or "or". A box that is repeated counts once. Of boxes in boxes, the innermost counts.
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
    is_cut_off = text.rstrip().endswith((r"\boxed", r"\fbox"))
    if is_cut_off or any(token.lastgroup == "box" and token.start() > last for token in opened):
        return ""
    parts: list[str] = []
    following = 0
    for start, end, content in reversed(boxes):
        between = _SPACE.sub(" ", text[end:following])
        is_near = len(between) < NEAR and "." not in between
        is_list = is_near or (len(between) < FAR and re.search(r"[,;]|\b(?:and|or)\b", between))
        if parts and not is_list:
            break
        parts.insert(0, content)
        following = start
    return ", ".join(dict.fromkeys(parts)) if parts else None


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)  # numpy's are numbers.Real
    return str(value).removesuffix(".0") if is_number and math.isfinite(value) else None
