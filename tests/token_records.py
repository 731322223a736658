"""Token records as a run writes them, of responses that look like a small model's, for tests of the token page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LINES = [
    "Let's denote the number of apples by {a} and the number of pears by {b}.",
    "Then the total cost is {a} \\times {b} = {c}.",
    "\\[ x^2 - {a}x + {b} = 0 \\implies x = \\frac{{{a} \\pm \\sqrt{{{c}}}}}{{2}} \\]",
    "Wait, I should check this again: if n = {a}, then n + {b} is even, so {c} divides it.",
    "\tHmm, that is not right.  The remainder of {c} modulo {a} is {b}.",
    "By the AM-GM inequality, {a} + {b} ≥ 2√{c}, with equality iff a = b.",
    "Therefore, the answer is \\boxed{{{c}}}.",
    "<think>\nOkay, so we need all integers n such that {a}n ≡ {b} (mod {c}).\n</think>",
]


def response(rng: np.random.Generator, length: int) -> list[str]:
    """Tokens, decoded one by one, of a response of ``length`` tokens; the last one is the end of the text."""
    tokens: list[str] = []
    while len(tokens) < length - 1:
        a, b, c = rng.integers(2, 400, 3)
        line = str(rng.choice(LINES)).format(a=a, b=b, c=c)
        for piece in re.findall(r" ?[A-Za-z]{1,7}|\d| ?[^\sA-Za-z\d]+|\s+", line):
            # A tokenizer of bytes may cut a character: decoded alone, neither part is text.
            tokens += ["\ufffd", "\ufffd"] if piece.strip() in set("≥≡√") else [piece]
        tokens.append("\n\n" if rng.random() < 0.5 else "\n")
    return [*tokens[: length - 1], "<|im_end|>"]


def write_record(
    path: Path,
    rng: np.random.Generator,
    lengths: dict[int, list[int]],
    kernel: str = "gaussian",
    responses: dict[int, list[list[str]]] | None = None,
    **metadata: str,
) -> pa.Table:
    """Write a record and return its table, without text's dictionary.

    Args:
        lengths: tokens of each response of each prompt group. The rows of the batch go round the groups.
        responses: the tokens' texts, of these lengths; made up if not given.
    """
    known: dict[str, int] = {}
    columns: dict[str, list[np.ndarray]] = {}
    prompts = {}
    for number, (group, of_responses) in enumerate(lengths.items()):
        texts = (responses or {}).get(group) or [response(rng, length) for length in of_responses]
        reward = rng.choice([0.0, 0.1, 1.0, 2.0], len(texts)).astype(np.float32)
        reward[:2] = 0.1, 2.0  # they differ
        a = np.repeat((reward - reward.mean()) / (reward.std() + 1e-6), of_responses)
        words = [word for text in texts for word in text]
        # Most tokens are certain; some, and line breaks' successors more often, are not.
        x = -(rng.gamma(0.25, 1.0, len(words)) ** 1.7)
        c = (x - x.mean()) * (a - a.mean())
        w = np.exp(-(c**2) / (2 * c.var()))
        prompts[str(group)] = (
            "<|im_start|>system\nReason step by step, and put the answer in \\boxed{}.<|im_end|>\n<|im_start|>user\n"
            f"What is the remainder of {17 * group + 3} divided by {group + 2}?<|im_end|>\n<|im_start|>assistant\n"
        )
        for name, values in {
            "group": np.full(len(words), group, np.int32),
            "row": np.repeat(np.arange(len(texts)) * len(lengths) + number, of_responses).astype(np.int32),
            "position": np.concatenate([np.arange(length) for length in of_responses]).astype(np.int32),
            "token_id": np.array([known.setdefault(word, 100 + len(known)) for word in words], np.int32),
            "text": np.array(words, dtype=object),
            "log_prob": x.astype(np.float32),
            "advantage": a.astype(np.float32),
            "covariance": c.astype(np.float32),
            "kernel": w.astype(np.float32),
            "weight": (w * len(w) / w.sum() if kernel == "gaussian" else np.ones(len(w))).astype(np.float32),
            "reward": np.repeat(reward, of_responses),
        }.items():
            columns.setdefault(name, []).append(values)
    table = pa.table({name: np.concatenate(values) for name, values in columns.items()})
    found = re.search(r"step_(\d+)", path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "step": str(int(found[1]) if found else 0),
        "scope": "group",
        "kernel": kernel,
        "groups": str(2 * len(lengths)),
        "tokens": str(2 * len(table)),
        "prompts": json.dumps(prompts),
    }
    stored = table.set_column(
        table.column_names.index("text"), "text", table["text"].dictionary_encode()
    ).replace_schema_metadata(about | metadata)
    pq.write_table(stored, path, compression="zstd")
    return table
