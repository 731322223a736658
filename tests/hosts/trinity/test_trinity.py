"""The advantages in Trinity-RFT's own pipeline, from its configuration to the batch and the losses of its trainer.

test_trinity_releases.py runs this file.
"""

import pytest

pytest.importorskip("trinity")

import asyncio
import json
import math

import golden
import torch
from interpreter import ROOT
from pyarrow import parquet
from reference_weightings import reference_weighted
from transformers import AutoTokenizer
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, POLICY_LOSS_FN
from trinity.buffer.pipelines import experience_pipeline
from trinity.buffer.pipelines.experience_pipeline import ExperiencePipeline
from trinity.common.config import ExperienceBufferConfig, load_config
from trinity.common.config_validator import AlgorithmConfigValidator
from trinity.common.experience import EID, Experience
from trinity.trainer.verl.utils import to_data_proto
from trinity.utils.log import get_logger

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.trinity import needs
from cw_plugin.hosts.trinity.advantage import TRINITY
from cw_plugin.lab.reports.read_records import read_tokens

MODEL = ROOT / "examples" / "cpu" / "model"
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
NAME = "cw_plugin.hosts.trinity.CWGRPOAdvantage"
OF_STEPS = "cw_plugin.hosts.trinity.CWStepWiseGRPOAdvantage"
PLAIN = {NAME: "grpo", OF_STEPS: "step_wise_grpo"}
TASKS, RUNS = 4, 5


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    """The environment of Trinity's actors."""
    folder = tmp_path / "project" / "run"
    folder.mkdir(parents=True)
    monkeypatch.setenv("TRINITY_LOG_DIR", str(folder / "log"))
    return folder


def experiences(steps: int = 1, seed: int = 0, batch: int | str = 7) -> list[Experience]:
    """Of one step of the explorer: ragged, with holes where tools answered. The first task has no signal."""
    chance, made = torch.Generator().manual_seed(seed), []
    for task in range(TASKS):
        for run in range(RUNS):
            reward = float(torch.rand(1, generator=chance)) if task else 1.0
            for step in range(int(torch.randint(1, steps + 1, (1,), generator=chance))):
                length = int(torch.randint(3, 20, (1,), generator=chance))
                prompt = int(torch.randint(1, 6, (1,), generator=chance))
                mask = torch.rand(length, generator=chance) > 0.2
                mask[0] = True
                made.append(
                    Experience(
                        eid=EID(batch=batch, task=task, run=run, step=step),
                        tokens=torch.randint(5, TOKENIZER.vocab_size, (prompt + length,), generator=chance),
                        prompt_length=prompt,
                        logprobs=-5 * torch.rand(length, generator=chance) ** 3,
                        reward=reward,
                        action_mask=mask,
                    )
                )
    return made


class Output:
    """In the place of the trainer's buffer, which is a Ray actor."""

    def __init__(self, config) -> None:
        self.written = b""

    async def acquire(self):
        return 1

    async def write(self, data):
        self.written = Experience.serialize_many(data)


def pipeline(folder, advantage_fn: str, arguments: dict | None = None, algorithm: str = "grpo") -> ExperiencePipeline:
    """Trinity's pipeline, from a user's configuration, as its validator completes it."""
    text = {"algorithm_type": algorithm, "advantage_fn": advantage_fn}
    if arguments is not None:
        text["advantage_fn_args"] = arguments
    file = folder / "config.yaml"
    file.write_text(json.dumps({"algorithm": text, "data_processor": {"experience_pipeline": {"save_input": False}}}))
    config = load_config(str(file))
    AlgorithmConfigValidator().validate(config)
    config.buffer.trainer_input.experience_buffer = ExperienceBufferConfig()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience_pipeline, "get_buffer_writer", Output)
        made = ExperiencePipeline(config)
    asyncio.run(made.prepare())
    return made


def trained_on(made: ExperiencePipeline, exps: list[Experience]):
    """The batch of Trinity's trainer in verl's form, the experiences, and the metrics that its explorer logs."""
    metrics = asyncio.run(made.process(Experience.serialize_many(exps)))
    written = Experience.deserialize_many(made.output.written)
    return to_data_proto(written, 0, None, get_logger()), written, metrics


def reference(plain, scope: str) -> torch.Tensor:
    """w~ A from Trinity's own advantages and log-probs."""
    log_probs, advantages, mask = (plain.batch[name] for name in ("rollout_log_probs", "advantages", "response_mask"))
    groups = plain.non_tensor_batch["uid"] if scope == "group" else [0] * len(mask)
    return reference_weighted("gaussian", log_probs, advantages, mask, groups, torch.zeros_like(log_probs))


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize(
    ("name", "arguments", "steps"),
    [
        (NAME, None, 1),
        (NAME, {"std_threshold": 0.0001}, 1),  # leaves out the first task
        (NAME, {"std_threshold": 0.0001, "duplicate_experiences": True}, 1),
        (NAME, {"std_cal_level": "batch"}, 3),
        (OF_STEPS, {"enable_step_norm": True}, 3),
    ],
)
def test_the_trainer_gets_trinitys_advantages_times_the_reference_weights(run_folder, name, arguments, steps, scope):
    ours = arguments if scope == "group" else {**(arguments or {}), "scope": scope}
    torch.manual_seed(0)  # duplicates are drawn
    plain, _, metrics_of_trinity = trained_on(pipeline(run_folder, PLAIN[name], arguments), experiences(steps))
    torch.manual_seed(0)
    found, written, metrics = trained_on(pipeline(run_folder, name, ours), experiences(steps))
    assert found.non_tensor_batch["uid"].tolist() == plain.non_tensor_batch["uid"].tolist()
    wanted = reference(plain, scope)
    torch.testing.assert_close(found.batch["advantages"].double(), wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.batch["returns"], found.batch["advantages"], atol=0, rtol=0)
    assert (wanted - plain.batch["advantages"]).abs().max() > 0.1
    assert all(experience.advantages.shape == experience.action_mask.shape for experience in written)
    assert metrics["experience_pipeline/cw_grpo/weight_mean"] < 1
    assert metrics["experience_pipeline/cw_grpo/covariance_before"] != 0
    of_trinity = {key for key in metrics_of_trinity if "/time/" not in key}
    assert {key for key in metrics if "cw_grpo" not in key and "/time/" not in key} == of_trinity


@pytest.mark.parametrize("name", golden.WITHOUT_ENTROPIES)
def test_the_golden_vectors_reach_the_trainer(run_folder, name):
    exps = [
        Experience(
            eid=EID(batch=1, task=uid, run=row),
            tokens=torch.zeros(1 + len(log_probs), dtype=torch.long),
            prompt_length=1,
            logprobs=log_probs,
            reward=advantage,
            action_mask=torch.ones(len(log_probs), dtype=torch.bool),
        )
        for row, (uid, log_probs, advantage) in enumerate(golden.rows())
    ]
    _, written, _ = trained_on(pipeline(run_folder, NAME, {"weights": name}), exps)
    assert len(written) == len(exps)
    for experience in written:
        wanted = golden.weighted(name)[experience.eid.run, : len(experience.advantages)]
        torch.testing.assert_close(experience.advantages.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [NAME, OF_STEPS])
def test_the_weights_none_are_trinity_bit_for_bit(run_folder, name, capsys):
    plain, _, _ = trained_on(pipeline(run_folder, PLAIN[name]), experiences(3))
    found, _, metrics = trained_on(pipeline(run_folder, name, {"weights": "none"}), experiences(3))
    for key, values in plain.batch.items():
        assert torch.equal(found.batch[key], values)
    assert metrics["experience_pipeline/cw_grpo/weight_mean"] == 1
    assert "cw_grpo: this run trains on the host's own advantages" in capsys.readouterr().out  # Trinity's log


@pytest.mark.parametrize("limit", [2**18, 90])  # of a large step, tasks are drawn
def test_a_step_is_recorded_if_a_tokenizer_is_named(run_folder, capsys, monkeypatch, limit):
    monkeypatch.setattr("cw_plugin.records.write.LIMIT", limit)
    trained_on(pipeline(run_folder, NAME, {"record_every": 7}), experiences())
    assert not (run_folder / "tokens").exists() and "cannot be written" not in capsys.readouterr().out
    _, written, _ = trained_on(pipeline(run_folder, NAME, {"record_every": 7, "tokenizer": str(MODEL)}), experiences())
    table = parquet.read_table(run_folder / "tokens" / "step_000007.parquet").to_pydict()
    recorded = {row: written[row] for row in table["row"]}
    assert (len(recorded) == len(written)) == (limit > 90)
    for row, experience in recorded.items():
        of_row = [place for place, number in enumerate(table["row"]) if number == row]
        response = experience.tokens[experience.prompt_length :]
        assert [table["token_id"][place] for place in of_row] == response[experience.action_mask].tolist()
        assert [table["reward"][place] for place in of_row] == pytest.approx([experience.reward] * len(of_row))
    (record,) = read_tokens(run_folder)
    prompts = {one.eid.task: one.tokens[: one.prompt_length] for one in recorded.values()}
    assert record.prompts == {task: TOKENIZER.decode(ids, skip_special_tokens=True) for task, ids in prompts.items()}
    trained_on(pipeline(run_folder, NAME, {"tokenizer": str(MODEL)}), experiences(batch="of a program of one's own"))
    assert len(list((run_folder / "tokens").iterdir())) == 1


def test_a_step_of_an_agent_without_a_reward_is_recorded_without_one(run_folder):
    exps = experiences(steps=3)
    of_runs = [(experience.eid.task, experience.eid.run) for experience in exps]
    for experience, of_run, following in zip(exps, of_runs, [*of_runs[1:], None], strict=True):
        if of_run == following:  # only the last step has one
            experience.reward = None
    arguments = {"record_every": 7, "tokenizer": str(MODEL)}
    _, written, _ = trained_on(pipeline(run_folder, OF_STEPS, arguments), exps)
    table = parquet.read_table(run_folder / "tokens" / "step_000007.parquet").to_pydict()
    recorded = dict(zip(table["row"], table["reward"], strict=True))
    assert any(experience.reward is None for experience in written)
    for row, experience in enumerate(written):
        assert recorded[row] == pytest.approx(experience.reward or math.nan, nan_ok=True)


def test_a_folder_of_another_methods_checkpoints_is_refused(run_folder):
    trained_on(pipeline(run_folder, NAME), experiences())
    method = json.loads((run_folder / "cw_grpo.json").read_text())
    assert (method["scope"], method["weights"]) == ("group", "gaussian")
    pipeline(run_folder, NAME, {"scope": "batch"})  # no checkpoint has been written
    (run_folder / "global_step_5").mkdir()
    pipeline(run_folder, NAME)
    with pytest.raises(OptionsError, match="checkpoints that were trained with scope='group', and this run has"):
        pipeline(run_folder, NAME, {"scope": "batch"})


@pytest.mark.parametrize("name", [NAME, OF_STEPS])
def test_arguments_that_cannot_work_are_refused(run_folder, name):
    for wrong, said in [
        ({"scpoe": "batch"}, "scpoe is not an argument of CW.*; advantage_fn_args may have tokenizer, scope, weights"),
        ({"scope": "token"}, "scope='token' is invalid; use group or batch"),
        ({"weights": "gausian"}, "weights='gausian' is invalid"),
        ({"weights": "steer"}, "needs the entropy of each position, which Trinity-RFT does not compute before"),
    ]:
        with pytest.raises(OptionsError, match=said):
            pipeline(run_folder, name, wrong)


def test_an_option_in_the_environment_is_not_passed_over(run_folder, monkeypatch):
    monkeypatch.setenv("CW_GRPO_SCOPE", "batch")
    with pytest.raises(OptionsError, match="CW_GRPO_SCOPE in the environment would change nothing in Trinity"):
        pipeline(run_folder, NAME)


def test_batches_that_cannot_be_weighed_are_refused(run_folder, monkeypatch):
    made = pipeline(run_folder, NAME)
    for logprobs, said in [(None, "None"), (torch.zeros(2), "2")]:
        exps = experiences()
        exps[8].logprobs = logprobs
        with pytest.raises(HostError, match=f"7/1/3/0/.* has {said} log-probs, and an action_mask"):
            trained_on(made, exps)
    exps = experiences()
    exps[8].logprobs[0] = math.nan
    with pytest.raises(NonFiniteError, match=r"log_probs: NaN .* 1 row\(s\): 8\. .* Their experiences: 7/1/3/0/"):
        trained_on(made, exps)
    without_signal = pipeline(run_folder, NAME, {"std_threshold": 9.0})
    asyncio.run(without_signal.process(Experience.serialize_many(experiences())))
    assert Experience.deserialize_many(without_signal.output.written) == []
    monkeypatch.delenv("TRINITY_LOG_DIR")
    with pytest.raises(HostError, match="TRINITY_LOG_DIR is not set"):
        pipeline(run_folder, NAME)


def test_algorithms_whose_trainer_computes_advantages_are_refused():
    """These make the function in the trainer and call it with verl's batch, in place of the pipeline."""
    function = ADVANTAGE_FN.get(NAME)()
    algorithms = {name: ALGORITHM_TYPE.get(name) for name in ALGORITHM_TYPE._default_mapping}
    in_trainer = [name for name, algorithm in algorithms.items() if algorithm.compute_advantage_in_trainer]
    assert {"ppo", "rloo"} <= set(in_trainer) and "grpo" not in in_trainer
    with pytest.raises(OptionsError, match=r"computes advantages in the trainer, .*; use .* algorithm_type: grpo"):
        function(to_data_proto(experiences(), 0, None, get_logger()))


# Losses without advantages, of which an advantage function cannot know that they are chosen.
WITHOUT_ADVANTAGES = {"dpo", "sft", "sft_is", "sft_phi"}
WITH_AN_EXPERT = {"mix", "mix_chord"}  # these add such a loss to ppo's


def test_losses_multiply_each_token_by_its_advantage():
    """By their gradients, where the policy is still the one that sampled: in proportion to minus the advantage.

    SAPO has a temperature for each sign.
    """
    chance = torch.Generator().manual_seed(0)
    advantages, mask = torch.randn(4, 9, generator=chance), torch.rand(4, 9, generator=chance) > 0.2
    old = -torch.rand(4, 9, generator=chance)
    names = set(POLICY_LOSS_FN._default_mapping)
    assert names > WITHOUT_ADVANTAGES | WITH_AN_EXPERT
    for name in names - WITHOUT_ADVANTAGES - WITH_AN_EXPERT:
        loss = POLICY_LOSS_FN.get(name)
        arguments = loss.default_args() | ({"loss_agg_mode": "token-mean"} if name == "gspo" else {})
        log_probs = old.clone().requires_grad_()
        by_name = {"old_logprob": old, "action_mask": mask, "advantages": advantages}
        made = loss(**arguments)
        value, _ = made(log_probs, **{name: by_name[name] for name in made._select_keys})
        (gradient,) = torch.autograd.grad(value, log_probs)
        ratio = gradient / -advantages
        for ratios in (ratio[mask & (advantages > 0)], ratio[mask & (advantages < 0)]):
            torch.testing.assert_close(ratios, ratios[0].expand_as(ratios), rtol=1e-4, atol=0, msg=name)
            assert ratios[0] > 0


def test_what_the_plugin_needs_is_there():
    """What is missing in a release is said in one sentence."""
    TRINITY.require(*needs.NEEDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperiencePipeline, "_process_experiences", lambda self, exps: None)
        with pytest.raises(HostError, match=r"does not fit Trinity-RFT .*_process_experiences has no `exps, metric"):
            ADVANTAGE_FN.get(NAME)()
