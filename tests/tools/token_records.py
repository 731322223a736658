"""Token records of made-up responses, written as a run writes them."""

import logging
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from cw_plugin.batch import Batch
from cw_plugin.options import Options
from cw_plugin.records.write import TokenFiles
from cw_plugin.reweight import apply_weighting
from cw_plugin.statistics import Sums

# A tokenizer of bytes may cut a character: decoded alone, neither part is text.
WORDS = ["Then", " total", "\\frac{", "12", " \\times", "}", ".", "\n", "\n\n", "\t", "  ", "\ufffd", "<think>"]
PROMPT = "<|im_start|>user\nWhat is the remainder of {} divided by {}?<|im_end|>\n<|im_start|>assistant\n"


def files_in(folder: Path, scope: str = "group", weights: str = "gaussian", **settings: float) -> TokenFiles:
    return TokenFiles(folder, Options(scope, weights, settings=settings), logging.getLogger("cw_plugin"))


def write(files: TokenFiles, step: int, batch: Batch) -> None:
    """Write the record of a batch that is not a part of another, with the weights that a run would put there."""
    group = batch.group if files._options.scope == "group" else None
    weighting = files._options.load_weighting()
    x, a, mask = batch.log_probs, batch.advantages, batch.response_mask
    weights = apply_weighting(weighting, x, a, mask, group, None, step, keeps_weights=True).weights
    groups = {int(number) for number, mask in zip(batch.group, batch.response_mask, strict=True) if mask.any()}
    sums = Sums(tokens=int(batch.response_mask.sum()), groups=len(groups))
    files.write(step, replace(batch, weights=weights), sums)


def write_record(
    files: TokenFiles,
    step: int,
    rng: np.random.Generator,
    lengths: dict[int, list[int]],
    responses: dict[int, list[list[str]]] | None = None,
) -> None:
    """Write a record of prompt groups, whose rows alternate in the batch.

    Args:
        lengths: tokens of each response of each group; as many responses in each.
        responses: the tokens' texts, of these lengths; made up if not given.
    """
    words: dict[int, str] = {}

    def ids(texts: list[str]) -> torch.Tensor:
        numbers = [zlib.crc32(text.encode()) >> 8 for text in texts]
        words.update(zip(numbers, texts, strict=True))
        return torch.tensor(numbers)

    rows = [(group, i) for i in range(len(next(iter(lengths.values())))) for group in lengths]
    given = responses or {}
    texts = [given[g][i] if g in given else rng.choice(WORDS, lengths[g][i]).tolist() for g, i in rows]
    sequences = [(ids([PROMPT.format(17 * g + 3, g + 2)]), ids(text)) for (g, _), text in zip(rows, texts, strict=True)]
    rewards = torch.tensor(rng.choice([0.0, 0.1, 1.0, 2.0], len(rows)))
    rewards[: 2 * len(lengths)] = torch.tensor([0.1, 2.0]).repeat_interleave(len(lengths))  # they differ in each group
    width = max(map(len, texts))
    tokenizer = SimpleNamespace(
        decode=lambda numbers, skip_special_tokens: "".join(words[number] for number in numbers),
        batch_decode=lambda several: [words[number] for (number,) in several],
    )
    batch = Batch(
        -torch.tensor(rng.gamma(0.25, 1.0, (len(rows), width)) ** 1.7),  # most tokens are certain
        rewards - rewards.mean(),
        torch.arange(width) < torch.tensor([len(text) for text in texts])[:, None],
        torch.tensor([group for group, _ in rows]),
        rewards,
        lambda chosen: [sequences[row] for row in chosen],
        tokenizer,
    )
    write(files, step, batch)
