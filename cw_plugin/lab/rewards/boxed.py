r"""The boxed answer of a text, and numbers as text."""

import math
import numbers
import re
from decimal import Decimal
from typing import Any

from latex2sympy2_extended.math_normalization import extract_boxed_content

_SPACE = re.compile(r"(?:\s|\\q?quad(?![a-zA-Z]))+")


def final_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, and of the boxes listed right before it, joined by commas.

    Without a box, it is None; "" if the last one is never closed, since the answers before it were given up. Of boxes
    in boxes, the innermost counts. math-verify decides which boxes are a list: those with next to nothing between them,
    or little with a comma, a semicolon, "and" or "or".
    """
    if r"\boxed" not in text and r"\fbox" not in text:
        return None
    text = _SPACE.sub(lambda space: r"\quad " if "quad" in space[0] else " ", text)  # math-verify counts characters
    content: str = extract_boxed_content(text, "last")
    is_closed = content != text and content.count("{") == content.count("}")
    if not is_closed:
        return ""
    is_joined = content not in text
    return content.replace(",", ", ") if is_joined else content  # the boxes 1 and 234 are not the number 1,234


def number_text(value: Any) -> str | None:
    """A finite number as text, ``42.0`` as ``42``; None for anything else, including a bool."""
    is_number = isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)  # numpy's are numbers.Real
    return str(value).removesuffix(".0") if is_number and math.isfinite(value) else None
