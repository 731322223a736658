r"""The think section of a response: whether it is well formed, and the text after it."""

from __future__ import annotations

import functools
from collections.abc import Callable

OPEN, CLOSE = "<think>", "</think>"


def answer_section(response: str) -> str:
    """The text after the last ``</think>``; all of it when the section is never closed.

    What is boxed while thinking is a draft, not the answer.
    """
    return response.rpartition(CLOSE)[2]


def matched(response: str, opens_think: bool | None) -> float:
    """1.0 if there is one think section, it stands at the start, and it is opened and closed exactly once.

    Args:
        response: the text without the prompt.
        opens_think: the prompt already ends with ``<think>``; None accepts either way.
    """
    if response.count(CLOSE) != 1:
        return 0.0
    thinking, _, answer = response.partition(CLOSE)
    opened_here = thinking.lstrip().startswith(OPEN)
    if opens_think is not None and opened_here == opens_think:
        return 0.0
    return float(thinking.count(OPEN) == opened_here and OPEN not in answer)


def open_rs(response: str, opens_think: bool | None) -> float:
    r"""open-rs's ``format_reward``: 1.0 if ``"\n</think>\n"`` occurs exactly once, whatever else there is."""
    return float(response.count("\n</think>\n") == 1)


FORMAT_RULES: dict[str, Callable[[str, bool | None], float]] = {"matched": matched, "open-rs": open_rs}


@functools.cache
def template_opens_think(model_path: str) -> bool:
    """Whether the chat template of the model at ``model_path`` (a folder or a hub name) already opens ``<think>``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    messages = [{"role": "user", "content": "1+1?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return str(prompt).rstrip().endswith(OPEN)
