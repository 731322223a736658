"""The function of examples/tinker in the cookbook's own prepare_minibatch, without Tinker's service.

test_tinker_releases.py runs this file.
"""

import pytest

pytest.importorskip("tinker_cookbook")

import asyncio

import tinker
import torch
from interpreter import ROOT
from reference import reference_advantages
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl import data_processing, train
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from torch.nn.utils.rnn import pad_sequence


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "tinker"))
    import cw_grpo

    return cw_grpo


class Builder:
    def logging_tags(self):
        return []


def groups() -> list[TrajectoryGroup]:
    """Three prompts, five trajectories of each, with one to three turns, of which some begin a datum of their own."""
    chance, made = torch.Generator().manual_seed(0), []
    for _ in range(3):
        trajectories = []
        for _ in range(5):
            seen, turns = [], []
            for turn in range(int(torch.randint(1, 4, (1,), generator=chance))):
                continues = torch.rand(1, generator=chance) > 0.3
                observed = (seen if continues else []) + [1000 + turn, 7]
                length = int(torch.randint(2, 12, (1,), generator=chance))
                tokens = torch.randint(10, 99, (length,), generator=chance).tolist()
                log_probs = (-5 * torch.rand(length, generator=chance) ** 3).tolist()
                action = TokensWithLogprobs(tokens=tokens, maybe_logprobs=log_probs)
                turns.append(Transition(tinker.ModelInput.from_ints(observed), action, 0.0, episode_done=False))
                seen = observed + tokens
            trajectories.append(Trajectory(transitions=turns, final_ob=tinker.ModelInput.from_ints(seen)))
        rewards = torch.rand(5, generator=chance).tolist()
        made.append(TrajectoryGroup(trajectories, rewards, [{}] * 5))
    return made


def values(data, name: str) -> torch.Tensor:
    return pad_sequence([datum.loss_fn_inputs[name].to_torch() for datum in data], batch_first=True)


def test_the_cookbook_trains_on_the_reference_weights(example, monkeypatch):
    """It calls the function by its name, with whole groups."""
    plain, metadata = data_processing.assemble_training_data(groups(), data_processing.compute_advantages(groups()))
    monkeypatch.setattr(train, "assemble_training_data", example.assemble_training_data)
    monkeypatch.setattr(train, "print_group", lambda *_: None)  # it asks for a tokenizer
    found, _, _ = asyncio.run(train.prepare_minibatch([Builder()] * 3, groups(), None, None, 0.0, 0.0))
    uids = [of_datum["group_idx"] for of_datum in metadata]
    assert len(uids) > 15  # some trajectories became several data
    wanted, _ = reference_advantages(
        values(plain, "logprobs"), values(plain, "advantages"), values(plain, "mask"), uids
    )
    wanted = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(values(found, "advantages").double(), wanted, atol=1e-6, rtol=1e-5)
    assert (wanted - values(plain, "advantages")).abs().max() > 0.05
    for name in ("logprobs", "mask", "target_tokens"):
        assert torch.equal(values(found, name), values(plain, name))
    assert example.assemble_training_data([], []) == ([], [])
