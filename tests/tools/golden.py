"""The golden vectors (tests/golden) as one batch: rows of both groups, padded, in float64."""

import json
from pathlib import Path

import torch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text("utf-8"))
WIDTH = 9
UIDS = [f"group {number}" for number, group in enumerate(GOLDEN["groups"]) for _ in group["advantages"]]
# GRPO makes these of themselves as rewards, to 3e-5: the mean of each group is 0, and the standard deviation 1.
ADVANTAGES = torch.tensor([a for group in GOLDEN["groups"] for a in group["advantages"]], dtype=torch.float64)


def padded(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([row + [0] * (WIDTH - len(row)) for row in rows], dtype=torch.float64)


def of_tokens(name: str) -> torch.Tensor:
    """log_probs, entropies or response_mask, (rows, time)."""
    return padded([row for group in GOLDEN["groups"] for row in group[name]])


def weighted(weighting: str) -> torch.Tensor:
    """The golden weights times the advantages."""
    weights = padded([row for group in GOLDEN["weightings"][weighting]["weights"] for row in group])
    return weights * ADVANTAGES[:, None]
