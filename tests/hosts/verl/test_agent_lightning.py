"""agent-lightning's own trainer, which derives from verl's: one real step of it, without workers.

test_agent_lightning_releases.py runs this file.
"""

import pytest

pytest.importorskip("agentlightning")

from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
import yaml
from agentlightning.verl import trainer as of_agent_lightning
from agentlightning.verl.per_rollout_loss import normalize_advantages_by_rollout
from omegaconf import OmegaConf
from trainers import CW_GRPO, GRPO, OPTION, composed, copied, legacy_trainer, override, trainer_batch, weighted
from verl import DataProto

from cw_plugin.hosts.verl.trainer import OF_ROLLOUTS
from cw_plugin.lab.reports.read_records import read_tokens


class Trainer(of_agent_lightning.AgentLightningRayPPOTrainer):
    """Its step is agent-lightning's; what the step asks of workers is given."""

    def fit(self) -> None:
        self.checkpoint_manager = MagicMock()
        self.metrics, _ = self._train_step({}, curr_step_profile=False)

    fit.__module__ = of_agent_lightning.__name__

    def _next_train_batch_dict_for_rollout(self):
        return {"input_ids": torch.zeros(1, 1)}

    def _get_gen_batch(self, batch):
        return batch

    def _rollout(self, gen_batch, is_train):
        return copied(self.given), {}

    def _compute_old_log_prob(self, batch):
        computed = {"old_log_probs": batch.batch["log_probs"], "entropys": batch.batch["entropy"]}
        return DataProto.from_dict(tensors=computed), 0.0

    def _update_actor(self, batch):
        self.trained = batch
        return DataProto(meta_info={"metrics": {}})


def trainer(folder, *overrides: str) -> Trainer:
    config = composed("trainer.use_v1=False", "trainer.balance_batch=False", f"trainer.default_local_dir={folder}")
    of_package = Path(of_agent_lightning.__file__).with_name("config.yaml").read_text()
    own = {key: value for key, value in yaml.safe_load(of_package).items() if key not in ("hydra", "defaults")}
    OmegaConf.set_struct(config, False)
    config = OmegaConf.merge(config, own)
    override(config, "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.rollout.n=2", *overrides)
    return legacy_trainer(trainer=Trainer, config=config)


def rollouts(seed: int = 0) -> DataProto:
    """A batch as agent-lightning's adapter makes it: six prompts, four rollouts of each, one to three turns in each."""
    data, keys = trainer_batch(seed, outputs=3)
    chance = torch.Generator().manual_seed(seed)
    rollout_of_row = [key.rsplit("_", 1)[0] for key in keys]
    turns = {name: int(torch.randint(1, 4, (1,), generator=chance)) for name in dict.fromkeys(rollout_of_row)}
    reward = {name: float(torch.randint(0, 3, (1,), generator=chance)) for name in turns}
    kept = [
        row for row, key in enumerate(keys) if not key.startswith("pad") and int(key[-1]) < turns[rollout_of_row[row]]
    ]
    kept = kept[: len(kept) // 2 * 2]  # agent-lightning drops rows that do not fill a mini-batch
    tensors = {name: values[kept] for name, values in data.batch.items() if not name.startswith("token_level")}
    scores = torch.zeros_like(tensors["old_log_probs"])
    scores[:, 0] = torch.tensor([reward[rollout_of_row[row]] for row in kept])
    tensors["token_level_scores"], tensors["log_probs"] = scores, tensors.pop("old_log_probs")
    rows = np.array([rollout_of_row[row] for row in kept], dtype=object)
    prompts = np.array([name.split("_")[0] for name in rows], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"rollout_id_list": rows, "data_id_list": prompts})


def step(made: Trainer, data: DataProto) -> DataProto:
    made.given = data
    made.fit()
    return made.trained


VANILLA = "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
BY_ROW = "algorithm.enable_rollout_level_advantage=false"


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("weights", ["gaussian", "steer"])
def test_all_turns_of_a_rollout_train_on_the_reference_weights_of_their_prompt(tmp_path, scope, weights):
    """With agent-lightning's default, advantages of rollouts, and its default loss, which divides by their tokens. Its
    step calls the function that the plugin replaces by its name."""
    settings = f"{OPTION}scope={scope}", f"{OPTION}weights={weights}"
    made = trainer(tmp_path / "divided", CW_GRPO, *settings)
    assert made.config.algorithm.enable_rollout_level_advantage and hasattr(of_agent_lightning, OF_ROLLOUTS)
    data = rollouts()
    plain = step(trainer(tmp_path / "grpo", GRPO, VANILLA), data)
    wanted = weighted(plain, plain.batch["advantages"], scope, weights)
    found = step(trainer(tmp_path / "vanilla", CW_GRPO, VANILLA, *settings), data)
    torch.testing.assert_close(found.batch["advantages"].double(), wanted, rtol=1e-5, atol=1e-5)
    assert (wanted - plain.batch["advantages"]).abs().max() > 0.1
    divided = step(made, data)
    ids = divided.non_tensor_batch["rollout_id_list"]
    expected = normalize_advantages_by_rollout(wanted, data.batch["response_mask"], ids, num_trained_rows=len(data))
    torch.testing.assert_close(divided.batch["advantages"].double(), expected, rtol=1e-5, atol=1e-8)
    assert made.metrics["cw_grpo/weight_mean"] != 1
    assert made.metrics["training/rollout_level_advantage/n_multi_row_rollouts"] > 0
    (record,) = read_tokens(tmp_path / "divided")
    assert len(record.table) == data.batch["response_mask"].sum()


def test_advantages_of_rows_are_served_too(tmp_path):
    data = rollouts()
    plain = step(trainer(tmp_path / "grpo", GRPO, VANILLA, BY_ROW), data)
    found = step(trainer(tmp_path, CW_GRPO, VANILLA, BY_ROW), data)
    wanted = weighted(plain, plain.batch["advantages"])
    torch.testing.assert_close(found.batch["advantages"].double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_weights_none_are_agent_lightning_bit_for_bit(tmp_path):
    plain = step(trainer(tmp_path / "grpo", GRPO), rollouts())
    found = step(trainer(tmp_path, CW_GRPO, f"{OPTION}weights=none"), rollouts())
    assert torch.equal(found.batch["advantages"], plain.batch["advantages"])
