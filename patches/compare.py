"""Compares the advantages of two versions of verl, bit for bit: every estimator, both trainers, float32 and bfloat16.

    PYTHONPATH=BASE python patches/compare.py record base.pt
    PYTHONPATH=PATCHED python patches/compare.py record patched.pt
    python patches/compare.py table base.pt patched.pt ...         # Markdown; each file against the first

``table`` exits with an error if an estimator computes anything else than before, or no longer computes. Its last column
is the largest difference between the two trainers of the patched verl.

Each trainer computes log-probs, of logits in either precision, and then advantages, with its own functions. Two things
are stand-ins: the actor's forward pass, whose logits go through verl's functions, and for V1 a queue in memory, which
leaves out what was never put, as TransferQueue does.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

ESTIMATORS = (
    *("gae", "grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "remax"),
    *("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"),
    *("optimal_token_baseline", "tir_optimal_token_baseline"),
)
ROWS, WIDTH, PROMPT, VOCABULARY = 16, 12, 3, 32
COMPONENTS = ("accuracy", "format")
FAILURES = (AssertionError, KeyError, RuntimeError, TypeError, ValueError)


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
    prompts = torch.ones(ROWS, PROMPT, dtype=torch.long)
    scores = torch.randint(0, 5, (ROWS, 1), generator=g).float()
    tokens = torch.randint(0, VOCABULARY, (ROWS, PROMPT + WIDTH), generator=g)
    tensors = {
        "prompts": prompts,
        "responses": tokens[:, PROMPT:],
        "input_ids": tokens,
        "position_ids": torch.arange(PROMPT + WIDTH).expand(ROWS, -1),
        "attention_mask": torch.cat([prompts, mask], 1),
        "response_mask": mask,
        "rewards": torch.zeros(ROWS, WIDTH).scatter(1, lengths - 1, scores),
        "values": torch.rand(ROWS, WIDTH, generator=g) * mask,
    }
    values = {"uid": np.array([key[0] for key in keys], dtype=object)}
    values |= {name: torch.rand(ROWS, generator=g).numpy() for name in COMPONENTS}
    return tensors, values, keys


def nested(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor([row[:n] for row, n in zip(rows, lengths, strict=True)], layout=torch.jagged)


def forward(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What an engine computes of logits in that precision, nested over prompt and response."""
    from verl.utils import torch_functional as F

    logits = 3 * torch.randn(ROWS, PROMPT + WIDTH, VOCABULARY, generator=torch.Generator().manual_seed(1))
    logits, lengths = logits.to(dtype), tensors["attention_mask"].sum(1)
    output = {
        "log_probs": F.logprobs_from_logits(logits, tensors["input_ids"].roll(-1, 1)),
        "entropy": F.entropy_from_logits(logits),
        "sum_pi_squared": F.calculate_sum_pi_squared_from_logits(logits),
    }
    return {name: nested(rows, lengths) for name, rows in output.items()}


def configuration(estimator: str) -> Any:
    from omegaconf import OmegaConf

    algorithm = {"adv_estimator": estimator, "gdpo_reward_keys": list(COMPONENTS), "use_kl_in_reward": False}
    actor = {"calculate_sum_pi_squared": True, "loss_agg_mode": "token-mean", "loss_scale_factor": None}
    rollout = {"n": 2, "temperature": 1.0, "calculate_log_probs": False}
    actor_rollout_ref = {"actor": actor, "rollout": rollout}
    return OmegaConf.create(
        {"algorithm": {**algorithm, "gamma": 1.0, "lam": 1.0}, "actor_rollout_ref": actor_rollout_ref}
    )


def legacy(estimator: str, dtype: torch.dtype) -> torch.Tensor:
    from verl.protocol import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage
    from verl.utils import tensordict_utils as tu

    tensors, values, _ = batch(outputs=1)
    tensors["token_level_rewards"] = tensors.pop("rewards")
    if estimator == "remax":  # V1 never has them
        tensors["reward_baselines"] = torch.ones(ROWS)
    output = tu.get_tensordict(forward(tensors, dtype), {"metrics": {"mfu": 0.0}})
    trainer = SimpleNamespace(
        config=configuration(estimator), actor_rollout_wg=SimpleNamespace(compute_log_prob=lambda _: output)
    )
    data = DataProto.from_dict(tensors, values)
    data = data.union(RayPPOTrainer._compute_old_log_prob(trainer, data)[0])
    return compute_advantage(data, adv_estimator=estimator, config=trainer.config.algorithm).batch["advantages"]


def v1(estimator: str, dtype: torch.dtype, outputs: int = 1) -> torch.Tensor:
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils import tensordict_utils as tu

    tensors, values, keys = batch(outputs)
    lengths = tensors["response_mask"].sum(1)
    infos = [{key: float(values[key][row]) for key in COMPONENTS} for row in range(ROWS)]
    fields = {
        "response_mask": nested(tensors["response_mask"], lengths),
        "rm_scores": nested(tensors["rewards"], lengths),
        "values": nested(tensors["values"], lengths),
        "uid": values["uid"],
        "extra_fields": [{"reward_extra_info": info} for info in infos],
    }
    stored = dict(tu.get_tensordict(fields).items())

    class Queue:
        @staticmethod
        def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
            return TensorDict({name: stored[name] for name in select_fields if name in stored}, batch_size=ROWS)

        @staticmethod
        def kv_batch_put(keys: list[str], partition_id: str, fields: TensorDict) -> KVBatchMeta:
            stored.update(fields.items())
            return meta

    def compute_log_prob(meta: KVBatchMeta) -> KVBatchMeta:
        stored.update(forward(tensors, dtype))
        return meta

    class Trainer(trainer_base.PPOTrainer):
        def __init__(self) -> None:
            self.config = configuration(estimator)
            self.actor_rollout_wg = SimpleNamespace(compute_log_prob=compute_log_prob)

        def on_step_end(self) -> None: ...

        def on_sample_end(self) -> None: ...

    meta = KVBatchMeta(keys=keys, tags=[{}] * ROWS, partition_id="train")
    with patch.object(trainer_base, "tq", Queue):
        trainer = Trainer()
        trainer._compute_old_log_prob(meta, metrics={})
        trainer._compute_advantage(meta, metrics={})
    return stored["advantages"].to_padded_tensor(0.0, output_size=(ROWS, WIDTH))


COLUMNS: dict[str, Callable[[str, torch.dtype], torch.Tensor]] = {
    "legacy": legacy,
    "V1": v1,
    "V1, sessions of two outputs": lambda estimator, dtype: v1(estimator, dtype, outputs=2),
}
DTYPES = (torch.float32, torch.bfloat16)
Results = dict[tuple[str, str, torch.dtype], torch.Tensor | str]


def record(path: Path) -> None:
    results: Results = {}
    for estimator in ESTIMATORS:
        for column, compute in COLUMNS.items():
            for dtype in DTYPES:
                try:
                    results[estimator, column, dtype] = compute(estimator, dtype)
                except FAILURES as error:  # that it fails is the result
                    results[estimator, column, dtype] = type(error).__name__
    torch.save(results, path)


def in_words(before: torch.Tensor | str, after: torch.Tensor | str) -> str:
    if isinstance(after, str):
        return "fails" if isinstance(before, str) else f"now fails: {after}"
    if isinstance(before, str):
        return "now works"
    return "same" if torch.equal(before, after) else "CHANGED"


def difference(one: torch.Tensor | str, other: torch.Tensor | str) -> str:
    if isinstance(one, str) or isinstance(other, str):
        return "-"
    of_response = (one - other) * batch(outputs=1)[0]["response_mask"]  # the legacy trainer has other values in padding
    return f"{of_response.abs().max().item():.2g}"


def table(base: Path, patched: list[Path]) -> bool:
    """Whether every estimator computes what it did before, or what it could not compute before."""
    before: Results = torch.load(base)
    kept = True
    for path in patched:
        after: Results = torch.load(path)
        print(f"\n{path.stem} against {base.stem}; float32 / bfloat16 where they differ\n")
        print(f"| estimator | {' | '.join(COLUMNS)} | largest difference, V1 and legacy |")
        print("|---" * (len(COLUMNS) + 2) + "|")
        for estimator in ESTIMATORS:
            cells = []
            for column in COLUMNS:
                cases = [(estimator, column, dtype) for dtype in DTYPES]
                words = [in_words(before[case], after[case]) for case in cases]
                kept = kept and all(word in ("same", "fails", "now works") for word in words)
                cells.append(" / ".join(dict.fromkeys(words)))
            between = [difference(after[estimator, "V1", dtype], after[estimator, "legacy", dtype]) for dtype in DTYPES]
            cells.append(" / ".join(dict.fromkeys(between)))
            print(f"| `{estimator}` | {' | '.join(cells)} |")
    return kept


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        sys.exit(not table(Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]]))
