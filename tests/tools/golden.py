"""The golden vectors (tests/golden) as one batch: rows of both groups, padded, in float64."""

import json
from pathlib import Path

import torch

from cw_plugin.registry import load

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text("utf-8"))
WITHOUT_ENTROPIES = [name for name in GOLDEN["weightings"] if not load(name).needs_entropies]
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


def rows() -> list[tuple[str, torch.Tensor, float]]:
    """The group, the log-probs and the advantage of each row, without padding."""
    lengths = of_tokens("response_mask").sum(1).int().tolist()
    of_rows = zip(UIDS, of_tokens("log_probs").float(), lengths, ADVANTAGES.tolist(), strict=True)
    return [(uid, log_probs[:length], advantage) for uid, log_probs, length, advantage in of_rows]
