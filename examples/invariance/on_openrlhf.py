"""OpenRLHF: its ActorPPOTrainer on DeepSpeed; its estimators and our weightings in its experience maker.

The actor is a table of log-probs, since OpenRLHF's own is bfloat16, and DeepSpeed averages nothing wider than float32.
"""

import functools
import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from batches import GROUPS, PROMPT, RESPONSES, ROWS, WIDTH, Batch, Case, make_batch, order_of, rows_of
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.deepspeed import DeepspeedStrategy
from openrlhf_experiences import maker_of, settings
from torch.nn.functional import pad

from cw_plugin.hosts.openrlhf import hook
from cw_plugin.registry import BUILT_IN, load

PLAIN = RemoteExperienceMaker.compute_advantages_and_returns
hook.install()  # wraps that method
LOSSES: dict[str, dict[str, Any]] = {
    "loss: ppo": {},
    "loss: gspo": {"actor.policy_loss_type": "gspo"},
    "loss: ppo, dual clip": {"actor.dual_clip": 3.0},
    **{
        f"loss: ppo, correction by {level}": {"algo.advantage.is_correction_level": level} for level in ("token", "seq")
    },
    "loss: ppo, KL penalty": {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.1},
    "loss: ppo, entropy bonus": {"actor.entropy_coef": 0.1},
    "aggregation: seq-mean-token-mean": {"actor.loss_agg_mode": "seq-mean-token-mean"},
}
ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")


class Table(torch.nn.Module):
    """An actor whose parameters are the log-probs; a sequence begins with the number of its row."""

    def __init__(self, old: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = torch.nn.Parameter(pad(old.float(), (PROMPT - 1, 0)))

    def forward(self, sequences: torch.Tensor, action_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        log_probs = self.log_probs[sequences[:, 0], : action_mask.shape[1]]
        return log_probs, SimpleNamespace(entropy=log_probs**2)


def experience(batch: Batch, case: Case) -> Experience:
    """Of these rows; its columns are those of the sequences from the second token on."""

    def wide(values: torch.Tensor) -> torch.Tensor:
        return pad(values.float(), (PROMPT - 1, case.right))

    mask, old = wide(batch.mask).bool(), wide(batch.old + batch.drift)
    sequences = pad(torch.cat([batch.row[:, None], batch.ids[:, 1:]], 1), (0, case.right))
    attended = torch.cat([torch.ones(len(mask), PROMPT), pad(batch.mask.float(), (0, case.right))], 1).long()
    return Experience(
        sequences=sequences, attention_mask=attended, action_mask=mask, action_log_probs=old, base_action_log_probs=old,
        rollout_log_probs=old + wide(batch.entropies - 0.5), kl=0 * old, values=wide(batch.entropies), info={},
        advantages=batch.advantages.float()[:, None] * mask, rewards=batch.rewards.float(), index=batch.row.tolist(),
        total_length=PROMPT + batch.lengths, prompts=[str(group) for group in batch.group.tolist()],
    )  # fmt: skip


def gradient(options: dict[str, Any], loss: type | None, case: Case, seed: int) -> torch.Tensor | None:
    """Of the log-probs, as DeepSpeed's optimizer gets it."""
    if case.left:
        return None  # OpenRLHF pads on the right alone
    batch, found = make_batch(seed, rows_of(case, seed)), []
    args = settings(Path(tempfile.gettempdir()), **{"rollout.n_samples_per_prompt": RESPONSES, **options})
    args.ds.param_dtype, args.train.batch_size, args.rollout.batch_size = "fp32", ROWS, GROUPS
    args.train.dynamic_batch_enable, args.train.max_tokens_per_gpu = case.dynamic, 2 * (PROMPT + WIDTH)
    size, table = len(batch.row) // case.micro, Table(make_batch(seed).old)
    strategy = DeepspeedStrategy(micro_train_batch_size=size, train_batch_size=ROWS, zero_stage=0, args=args)
    strategy.setup_distributed()
    sgd = torch.optim.SGD(table.parameters(), lr=0.0)
    sgd.register_step_pre_hook(lambda *_: found.append(table.log_probs.grad.clone()))
    config = strategy.get_ds_train_config(max_norm=0.0)
    actor = deepspeed.initialize(model=table, optimizer=sgd, config=config, dist_init_required=False)[0]
    given = (strategy, actor, None, sgd, SimpleNamespace(get_last_lr=lambda: [0.0]))
    trainer = ActorPPOTrainer(*given, dataloader_pin_memory=False, micro_train_batch_size=size)
    trainer.actor_loss_fn = loss() if loss else trainer.actor_loss_fn
    trainer.replay_buffer.append(experience(batch, case))
    order_of(case, seed)  # seeds the generator once more
    trainer.ppo_train(kl_ctl=0.1)
    (only,) = found
    return only


@functools.cache
def maker(weights: str) -> Any:
    with patch.dict(os.environ, CW_GRPO_WEIGHTS=weights, CW_GRPO_RECORD_EVERY="0"):
        return maker_of(settings(Path(tempfile.mkdtemp()), **{"rollout.n_samples_per_prompt": RESPONSES}))


def advantages(estimator: str, weights: str, case: Case, seed: int) -> torch.Tensor | None:
    """In the trainer's process, which has the whole batch, in the micro-batches of the rollout."""
    if case.left or case.dynamic or case.ranks > 1:
        return None
    batch, made = make_batch(seed, order_of(case, seed)), maker(weights or "none")
    parts = [experience(Batch(*part), case) for part in zip(*(v.chunk(case.micro) for v in batch), strict=True)]
    made.advantage_estimator = made.strategy.args.algo.advantage.estimator = estimator
    parts = made.compute_advantages_and_returns(parts) if weights else PLAIN(made, parts)
    return batch.in_order(torch.cat([part.advantages for part in parts])[:, PROMPT - 1 :])


def rows(own: Any) -> dict[str, Any]:
    """``own``: a class in the place of OpenRLHF's PolicyLoss, constructed without arguments."""
    found = {"loss: own": partial(gradient, {}, own)} if own else {}
    found |= {name: partial(gradient, options, None) for name, options in LOSSES.items()}
    found |= {f"estimator: {name}": partial(advantages, name, "") for name in ESTIMATORS}
    served = [name for name in BUILT_IN if not load(name).needs_entropies]  # which OpenRLHF does not have
    return found | {f"weights: {name}": partial(advantages, "group_norm", name) for name in served}
