"""Token records as a run writes them, for tests of the token page."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# A tokenizer of bytes may cut a character: decoded alone, neither part is text.
# fmt: off
WORDS = ["Then", " the", " total", " is", "\\frac{", "12", " \\times", "}", ".", "\n", "\n\n", "\t", "  ", "\ufffd",
         "<think>"]
# fmt: on


def write_record(
    path: Path,
    rng: np.random.Generator,
    lengths: dict[int, list[int]],
    kernel: str = "gaussian",
    responses: dict[int, list[list[str]]] | None = None,
) -> pa.Table:
    """Write a record and return its table, without text's dictionary.

    Args:
        lengths: tokens of each response of each prompt group. The rows of the batch go round the groups.
        responses: the tokens' texts, of these lengths; made up if not given.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for number, (group, of_responses) in enumerate(lengths.items()):
        texts = (responses or {}).get(group) or [[*rng.choice(WORDS, length)] for length in of_responses]
        words = [str(word) for text in texts for word in text]
        reward = rng.choice([0.0, 0.1, 1.0, 2.0], len(texts)).astype(np.float32)
        reward[:2] = 0.1, 2.0  # they differ
        a = np.repeat((reward - reward.mean()) / (reward.std() + 1e-6), of_responses)
        x = -(rng.gamma(0.25, 1.0, len(words)) ** 1.7)  # most tokens are certain
        c = (x - x.mean()) * (a - a.mean())
        w = np.exp(-(c**2) / (2 * c.var()))
        for name, values in {
            "group": np.full(len(words), group, np.int32),
            "row": np.repeat(np.arange(len(texts)) * len(lengths) + number, of_responses).astype(np.int32),
            "position": np.concatenate([np.arange(length) for length in of_responses]).astype(np.int32),
            "token_id": np.array([zlib.crc32(word.encode()) >> 8 for word in words], np.int32),
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
    prompt = "<|im_start|>user\nWhat is the remainder of {} divided by {}?<|im_end|>\n<|im_start|>assistant\n"
    about = {"step": re.findall(r"step_(\d+)", path.name)[0], "scope": "group", "kernel": kernel,
             "groups": str(2 * len(lengths)), "tokens": str(2 * len(table)),
             "prompts": json.dumps({group: prompt.format(17 * group + 3, group + 2) for group in lengths})}  # fmt: skip
    place = table.column_names.index("text")
    stored = table.set_column(place, "text", table["text"].dictionary_encode()).replace_schema_metadata(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(stored, path, compression="zstd")
    return table
