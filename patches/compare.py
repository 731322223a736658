"""Compares the advantages of two versions of verl, bit for bit: every estimator, both trainers.

    PYTHONPATH=BASE python patches/compare.py record base.pt
    PYTHONPATH=PATCHED python patches/compare.py record patched.pt
    python patches/compare.py table base.pt patched.pt ...         # Markdown; each file against the first

``table`` exits with an error if an estimator computes anything else than before, or no longer computes.

The legacy trainer is its compute_advantage. V1 is PPOTrainer._compute_advantage, with a queue in memory that leaves out
what was never put, as TransferQueue does.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

ESTIMATORS = (
    *("gae", "grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "remax"),
    *("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"),
    *("optimal_token_baseline", "tir_optimal_token_baseline", "cw_grpo"),
)
ROWS, WIDTH, PROMPT = 16, 12, 3


def batch(outputs: int) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray], list[str]]:
    """Tensors, values per sample and keys of ROWS samples of two prompts, whose sessions have that many outputs."""
    g = torch.Generator().manual_seed(0)
    sessions = ROWS // 2 // outputs
    keys = [
        f"{prompt}_{session}_{output}" for prompt in "ab" for session in range(sessions) for output in range(outputs)
    ]
    keys = [keys[row] for row in torch.randperm(ROWS, generator=g)]
    lengths = torch.randint(2, WIDTH + 1, (ROWS, 1), generator=g)
    mask = (torch.arange(WIDTH) < lengths).long()
    rewards = torch.zeros(ROWS, WIDTH).scatter(1, lengths - 1, torch.randint(0, 5, (ROWS, 1), generator=g).float())
    tensors = {
        "prompts": torch.ones(ROWS, PROMPT, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.long), mask], 1),
        "response_mask": mask,
        "token_level_rewards": rewards,
        "old_log_probs": -3 * torch.rand(ROWS, WIDTH, generator=g) * mask,
        "sum_pi_squared": torch.rand(ROWS, WIDTH, generator=g) * mask,
        "values": torch.rand(ROWS, WIDTH, generator=g) * mask,
    }
    values = {"uid": np.array([key[0] for key in keys], dtype=object)}
    values |= {name: torch.rand(ROWS, generator=g).numpy() for name in ("accuracy", "format")}
    return tensors, values, keys


def legacy(estimator: str, config: Any) -> torch.Tensor:
    from verl.protocol import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    tensors, values, _ = batch(outputs=1)
    if estimator == "remax":  # V1 never has them
        tensors["reward_baselines"] = torch.ones(ROWS)
    result = compute_advantage(DataProto.from_dict(tensors, values), adv_estimator=estimator, config=config)
    return result.batch["advantages"]


def v1(estimator: str, config: Any, outputs: int = 1) -> torch.Tensor:
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils import tensordict_utils as tu

    tensors, values, keys = batch(outputs)
    lengths = tensors["response_mask"].sum(1)
    tensors["rm_scores"] = tensors.pop("token_level_rewards")
    fields: dict[str, Any] = {
        name: torch.nested.as_nested_tensor(
            [row[:n] for row, n in zip(rows, lengths, strict=True)], layout=torch.jagged
        )
        for name, rows in tensors.items()
        if rows.shape[1] == WIDTH
    }
    infos = [{key: float(values[key][row]) for key in ("accuracy", "format")} for row in range(ROWS)]
    fields |= {"uid": values["uid"], "extra_fields": [{"reward_extra_info": info} for info in infos]}
    stored = dict(tu.get_tensordict(fields).items())

    class Queue:
        @staticmethod
        def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
            return TensorDict({name: stored[name] for name in select_fields if name in stored}, batch_size=ROWS)

        @staticmethod
        def kv_batch_put(keys: list[str], partition_id: str, fields: TensorDict) -> None:
            stored.update(fields.items())

    class Trainer(trainer_base.PPOTrainer):
        def __init__(self) -> None:
            algorithm = {"use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0, **config, "adv_estimator": estimator}
            actor_rollout_ref = {"actor": {"calculate_sum_pi_squared": True}, "rollout": {"n": 2}}
            self.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": actor_rollout_ref})

        def on_step_end(self) -> None: ...

        def on_sample_end(self) -> None: ...

    with patch.object(trainer_base, "tq", Queue):
        meta = KVBatchMeta(keys=keys, tags=[{}] * ROWS, partition_id="train")
        Trainer()._compute_advantage(meta, metrics={})
    return stored["advantages"].to_padded_tensor(0.0, output_size=(ROWS, WIDTH))


COLUMNS: dict[str, Callable[[str, Any], torch.Tensor]] = {
    "legacy": legacy,
    "V1": v1,
    "V1, sessions of two outputs": lambda estimator, config: v1(estimator, config, outputs=2),
}


def record(path: Path) -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.create({"gdpo_reward_keys": ["accuracy", "format"], "gamma": 1.0})
    results: dict[tuple[str, str], torch.Tensor | str] = {}
    for estimator in ESTIMATORS:
        for column, compute in COLUMNS.items():
            try:
                results[estimator, column] = compute(estimator, config)
            except (AssertionError, KeyError, TypeError, ValueError) as error:  # that it fails is the result
                results[estimator, column] = type(error).__name__
    torch.save(results, path)


def in_words(before: Any, after: Any) -> str:
    if isinstance(after, str):
        return "fails" if isinstance(before, str) else f"now fails: {after}"
    if isinstance(before, str):
        return "now works"
    return "same" if torch.equal(before, after) else "CHANGED"


def table(base: Path, patched: list[Path]) -> bool:
    """Whether every estimator computes what it did before, or what it could not compute before."""
    before = torch.load(base)
    kept = True
    for path in patched:
        after = torch.load(path)
        print(
            f"\n{path.stem} against {base.stem}\n\n| estimator | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}"
        )
        for estimator in ESTIMATORS:
            cells = [in_words(before[estimator, column], after[estimator, column]) for column in COLUMNS]
            print(f"| `{estimator}` | {' | '.join(cells)} |")
            kept = kept and all(cell in ("same", "fails", "now works") for cell in cells)
    return kept


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        sys.exit(not table(Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]]))
