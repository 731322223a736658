"""Renders prompts as verl does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def prompt_lengths(tokenizer: Any, chats: Sequence[Any], template: Mapping[str, Any]) -> list[int]:
    """The number of tokens of each prompt, as verl renders it.

    Args:
        tokenizer: of transformers, with a chat template.
        chats: prompts, each a list of turns.
        template: ``data.apply_chat_template_kwargs``.
    """
    texts = tokenizer.apply_chat_template(list(chats), add_generation_prompt=True, tokenize=False, **template)
    return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
