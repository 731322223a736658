"""OpenRLHF: its ActorPPOTrainer on DeepSpeed; its estimators and our weightings in its experience maker.

The actor is a table of log-probs, since OpenRLHF's own is bfloat16, and DeepSpeed averages nothing wider than float32.
"""

import os
import tempfile
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from batches import GROUPS, PROMPT, RESPONSES, ROWS, TOKENS, Batch, Case, NotOfferedError, in_order, make_batch, share
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
LEVEL = "algo.advantage.is_correction_level"
LOSSES: dict[str, dict[str, Any]] = {
    "loss: ppo": {},
    "loss: gspo": {"actor.policy_loss_type": "gspo"},
    "loss: ppo, dual clip": {"actor.dual_clip": 3.0},
    **{f"loss: ppo, correction by {level}": {LEVEL: level} for level in ("token", "seq")},
    "loss: ppo, KL penalty": {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.1},
    "loss: ppo, entropy bonus": {"actor.entropy_coef": 0.1},
    "aggregation: seq-mean-token-mean": {"actor.loss_agg_mode": "seq-mean-token-mean"},
}
ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")


class Table(torch.nn.Embedding):
    """An actor whose parameters are the log-probs; a sequence begins with the number of its row."""

    def forward(self, sequences: torch.Tensor, action_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        log_probs = super().forward(sequences[:, 0])[:, : action_mask.shape[1]]
        return log_probs, SimpleNamespace(entropy=log_probs**2)


def experience(batch: Batch, case: Case) -> Experience:
    """Of these rows, whose prompts have one token."""

    def wide(values: torch.Tensor) -> torch.Tensor:
        return pad(values.float(), (0, case.right))

    mask, old = wide(batch.mask).bool(), wide(batch.old + batch.drift)
    return Experience(
        sequences=pad(torch.cat([batch.row[:, None], batch.ids[:, PROMPT:]], 1), (0, case.right)),
        attention_mask=pad(mask.long(), (1, 0), value=1), action_mask=mask, action_log_probs=old,
        base_action_log_probs=old, rollout_log_probs=old + wide(batch.entropies - 0.5), kl=0 * old, info={},
        values=wide(batch.entropies), advantages=batch.advantages.float()[:, None] * mask, index=batch.row.tolist(),
        rewards=batch.rewards.float(), total_length=1 + batch.lengths, prompts=list(map(str, batch.group.tolist())),
    )  # fmt: skip


def update(case: Case, seed: int, loss: type | None = None, options: dict[str, Any] = {}) -> None:  # noqa: B006
    if case.left:
        raise NotOfferedError  # OpenRLHF pads on the right alone
    batch = share(case, seed)
    args = settings(Path(tempfile.gettempdir()), **{"rollout.n_samples_per_prompt": RESPONSES, **options})
    args.ds.param_dtype, args.train.batch_size, args.rollout.batch_size = "fp32", ROWS, GROUPS
    args.train.dynamic_batch_enable, args.train.max_tokens_per_gpu = case.dynamic, TOKENS
    size, table = len(batch.row) // case.micro, Table.from_pretrained(make_batch(seed).old.float(), freeze=False)
    strategy = DeepspeedStrategy(micro_train_batch_size=size, train_batch_size=ROWS, zero_stage=0, args=args)
    strategy.setup_distributed()
    sgd, config = torch.optim.SGD(table.parameters(), lr=0.0), strategy.get_ds_train_config(max_norm=0.0)
    actor = deepspeed.initialize(model=table, optimizer=sgd, config=config, dist_init_required=False)[0]
    given = (strategy, actor, None, sgd, SimpleNamespace(get_last_lr=lambda: [0.0]))
    trainer = ActorPPOTrainer(*given, dataloader_pin_memory=False, micro_train_batch_size=size)
    trainer.actor_loss_fn = loss() if loss else trainer.actor_loss_fn
    trainer.replay_buffer.append(experience(batch, case))
    trainer.ppo_train(kl_ctl=0.1)


@cache
def maker(weights: str) -> Any:
    os.environ["CW_GRPO_WEIGHTS"] = weights
    return maker_of(settings(Path(tempfile.mkdtemp()), **{"rollout.n_samples_per_prompt": RESPONSES}))


def advantages(case: Case, seed: int, estimator: str = "group_norm", weights: str = "") -> torch.Tensor:
    """In the trainer's process, which has the whole batch, in the micro-batches of the rollout."""
    if case.left or case.dynamic or case.ranks > 1:
        raise NotOfferedError
    batch, made = share(case, seed), maker(weights or "none")
    parts = [experience(Batch(*part), case) for part in zip(*(v.chunk(case.micro) for v in batch), strict=True)]
    made.advantage_estimator = made.strategy.args.algo.advantage.estimator = estimator
    parts = made.compute_advantages_and_returns(parts) if weights else PLAIN(made, parts)
    return in_order(batch, torch.cat([part.advantages for part in parts]))


def rows(own: Any) -> dict[str, Any]:
    """``own``: a class in the place of OpenRLHF's PolicyLoss, constructed without arguments."""
    found = {"loss: own": partial(update, loss=own)} if own else {}
    found |= {row: partial(update, options=options) for row, options in LOSSES.items()}
    found |= {f"estimator: {name}": partial(advantages, estimator=name) for name in ESTIMATORS}
    served = [name for name in BUILT_IN if not load(name).needs_entropies]  # which OpenRLHF does not have
    return found | {f"weights: {name}": partial(advantages, weights=name) for name in served}
