"""Writes golden.json: the weights of every weighting on two groups, in float64, by the loops of the tests.

python tests/golden/write.py
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from reference_weightings import WEIGHTINGS, reference_weights

from cw_plugin.registry import load

HERE = Path(__file__).parent
LENGTHS = ((6, 2, 9, 4), (3, 7, 5, 1))  # of the responses of each group
ADVANTAGES = ((1.5, -0.5, -0.5, -0.5), (0.866, 0.866, -0.866, -0.866))


def groups() -> list[dict[str, list]]:
    """Log-probs, entropies and mask of each group (rows, time), and its advantages (rows,)."""
    numbers = torch.Generator().manual_seed(79)
    made = []
    for lengths, advantages in zip(LENGTHS, ADVANTAGES, strict=True):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        log_probs = -2 * torch.rand(mask.shape, generator=numbers, dtype=torch.float64).square()
        entropies = torch.rand(mask.shape, generator=numbers, dtype=torch.float64).square()
        made.append(
            {
                "log_probs": log_probs.mul(mask).tolist(),
                "entropies": entropies.mul(mask).tolist(),
                "advantages": list(advantages),
                "response_mask": mask.int().tolist(),
            }
        )
    return made


def weights_of(name: str, made: list[dict[str, list]]) -> list[list[list[float]]]:
    """The weights of each group. STARE's gate asks both groups together."""
    width = max(len(group["response_mask"][0]) for group in made)
    tensors = {
        key: torch.cat([padded(torch.tensor(group[key], dtype=torch.float64), width) for group in made])
        for key in ("log_probs", "entropies", "response_mask", "advantages")
    }
    uids = [number for number, group in enumerate(made) for _ in group["advantages"]]
    order = tensors["log_probs"], tensors["advantages"], tensors["response_mask"], uids, tensors["entropies"]
    found = reference_weights(name, *order)
    split = found.split([len(group["advantages"]) for group in made])
    return [rows[:, : len(group["response_mask"][0])].tolist() for rows, group in zip(split, made, strict=True)]


def padded(values: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of this width; what has one value for each row stays."""
    return values if values.ndim == 1 else torch.nn.functional.pad(values, (0, width - values.shape[1]))


def main() -> None:
    made = groups()
    weights = {name: {"settings": dict(load(name).values), "weights": weights_of(name, made)} for name in WEIGHTINGS}
    text = json.dumps({"groups": made, "weightings": weights}, separators=(",", ":"))
    (HERE / "golden.json").write_text(text.replace('],"', '],\n"').replace('}},"', '}},\n"') + "\n")


if __name__ == "__main__":
    main()
