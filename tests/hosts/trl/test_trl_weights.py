"""CWGRPOTrainer's weights at TRL's loss, by real training on a CPU, in one process and in several."""

import pytest

pytest.importorskip("trl")

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import torch
import trl
from interpreter import ROOT, python
from reference_weightings import WEIGHTINGS
from transformers import AutoModelForCausalLM
from trl import GRPOConfig
from trl_checks import LORA, check_weights, unpadded
from trl_training import (
    BASE,
    MODEL,
    QUESTIONS,
    BackwardsCW,
    WatchedCW,
    WithTools,
    every_third_unscored,
    in_order,
    kept,
    prompts,
    reward,
    train,
    two_thirds_unscored,
)

from cw_plugin.hosts.host import TRL
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.statistics import CovarianceStatistics

pytestmark = pytest.mark.filterwarnings("ignore")
RESPONSE = 6  # a token
PADDING = {"pad_to_multiple_of": 64} if "pad_to_multiple_of" in GRPOConfig.__dataclass_fields__ else {}  # not in 0.29
TWO, PARTS = [every_third_unscored, two_thirds_unscored], [1.0, 0.5]
SPLIT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
TWICE = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_iterations": 2}


@pytest.mark.parametrize(
    ("trainer", "given", "options", "rows"),
    [
        pytest.param(WatchedCW, {}, TWICE, 16, id="accumulation-and-two-iterations"),
        pytest.param(WatchedCW, {}, {**SPLIT, "cw_scope": "batch"}, 8, id="batch-and-two-steps-per-generation"),
        pytest.param(WatchedCW, {}, {"loss_type": "grpo", "beta": 0.04, **PADDING}, 16, id="kl-and-padding"),
        pytest.param(WatchedCW, {"peft_config": LORA}, {}, 16, id="peft-with-dropout-of-its-own"),
        pytest.param(WithTools, {}, {"max_steps": 1}, 8, id="tools"),
        pytest.param(
            WatchedCW,
            {"reward_funcs": TWO},
            {"max_steps": 1, "reward_weights": PARTS},
            8,
            id="unscored-by-one-and-by-both",
        ),
        pytest.param(WatchedCW, {"reward_funcs": [in_order]}, {"max_steps": 1}, 8, id="an-advantage-of-0"),
    ],
)
def test_every_row_at_the_loss_has_the_weights_of_its_whole_group(tmp_path, trainer, given, options, rows):
    run = train(tmp_path, trainer, given, **options)
    functions = given.get("reward_funcs", [reward])

    def score(completions: list[list[int]]) -> list[float | None]:
        """The sum of the scores that there are. The oldest TRL trains on a response without any as on a reward of 0."""
        of_rows = zip(*(function(completions) for function in functions), strict=True)
        known = [
            [value * part for value, part in zip(row, PARTS, strict=False) if value is not None] for row in of_rows
        ]
        return [sum(values) if values or trl.__version__ == TRL.oldest else None for values in known]

    check_weights([kept(run)], rows, options.get("cw_scope", "group"), score)
    if functions == TWO:
        completions = [unpadded(run.at_loss[0], row)[1] for row in range(rows)]
        unscored_by = [row.count(None) for row in zip(*(function(completions) for function in functions), strict=True)]
        assert 1 in unscored_by and 2 in unscored_by
        (record,) = read_tokens(tmp_path)
        recorded = dict(zip(*(record.table[name].to_pylist() for name in ("row", "reward")), strict=True))
        scored = [value for value, count in zip(score(completions), unscored_by, strict=True) if count < 2]
        assert sorted(value for value in recorded.values() if not math.isnan(value)) == sorted(scored)
    if functions == [in_order]:
        assert (run.at_loss[0]["advantages"] == 0).all(1).sum() == 4
    if "peft_config" in given:
        assert any("lora_B" in name and value.any() for name, value in run.policies[1].items())


def test_the_forward_pass_of_the_weights_needs_the_memory_of_a_micro_batch(tmp_path):
    seen, model = [], AutoModelForCausalLM.from_pretrained(MODEL)

    def see(module, _, named):
        if not module.training and not named.get("use_cache"):  # which generation uses
            seen.append((len(named["input_ids"]), torch.is_grad_enabled()))

    model.register_forward_pre_hook(see, with_kwargs=True)
    train(tmp_path, given={"model": model}, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=1)
    assert seen == [(2, False)] * 4


OF_LITERATURE = [name for name in WEIGHTINGS if name not in ("gaussian", "none")]
QUICK = ("ar", "high_entropy", "steer")
WITHOUT_OLD_LOG_PROBS = {"max_steps": 1}
WITH_THEM = {**TWICE, "beta": 0.04}  # and with those of a reference model, the same without its adapter
CASES = [(name, options) for name in OF_LITERATURE for options in (WITHOUT_OLD_LOG_PROBS, WITH_THEM)]
QUICK_CASES = [("high_entropy", WITHOUT_OLD_LOG_PROBS), ("steer", WITH_THEM)]


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*case, marks=() if case in QUICK_CASES else pytest.mark.slow) for case in CASES],
)
def test_every_weighting_reaches_the_loss(tmp_path, name, options):
    """Whether TRL computes old log-probs, with which entropies then come, or not."""
    given = {"peft_config": replace(LORA, lora_dropout=0.0)} if options is WITH_THEM else {}
    run = train(tmp_path, given=given, cw_weights=name, **options)
    check_weights([kept(run)], 8 if options is WITHOUT_OLD_LOG_PROBS else 16, weights=name)
    assert not run._cw_computed


@pytest.mark.parametrize(
    ("names", "processes"),
    [
        pytest.param(QUICK, 2, id="quick"),
        pytest.param([n for n in OF_LITERATURE if n not in QUICK], 2, marks=pytest.mark.slow),
        pytest.param(OF_LITERATURE, 3, marks=pytest.mark.slow),
    ],
)
def test_every_weighting_in_processes_that_share_a_group(tmp_path, names, processes):
    options = {"per_device_train_batch_size": 2, "num_iterations": 2, "max_steps": 2}
    options["gradient_accumulation_steps"] = 6 // processes
    found = launch(tmp_path, {name: {**options, "cw_weights": name} for name in names}, processes)
    for name in names:
        check_weights(found[name], 24, weights=name)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("gaussian", {}), ("clip_cov", {"lower": 0.01}), ("drop_top_cov", {"share": 0.1}), ("high_entropy", {})],
)
def test_weights_do_not_depend_on_the_order_of_the_rows(tmp_path, name, chosen):
    """Of the responses to a prompt, which TRL takes as consecutive."""
    of_rows = []
    for trainer in (WatchedCW, BackwardsCW):
        run = train(tmp_path / trainer.__name__, trainer, cw_weights=name, cw_settings=chosen, max_steps=1)
        (batch,) = run.at_loss
        rows = [unpadded(batch, row) for row in range(8)]
        of_rows.append({(prompt, completion): advantages for prompt, completion, _, advantages in rows})
    found, again = of_rows
    assert found.keys() == again.keys() and len(found) == 8
    assert sum(len(set(advantages)) > 1 for advantages in found.values()) > 1
    for row, advantages in found.items():
        assert again[row] == pytest.approx(advantages, rel=1e-4, abs=1e-5)


class Golden(CWGRPOTrainer):
    """Its responses have the lengths of the golden vectors."""

    def _generate(self, prompts):
        result = list(super()._generate(prompts))
        result[1] = [[RESPONSE] * len(log_probs) for _, log_probs, _ in golden.rows()]
        return tuple(result)


@pytest.mark.parametrize("name", golden.GOLDEN["weightings"])
def test_the_golden_vectors_are_what_trl_trains_on(tmp_path, monkeypatch, name):
    def forward(self, model, input_ids, attention_mask, logits_to_keep, *_, **__):
        return tuple(golden.of_tokens(values)[:, :logits_to_keep].float() for values in ("log_probs", "entropies"))

    monkeypatch.setattr(trl.GRPOTrainer, "_get_per_token_logps_and_entropies", forward)
    trainer = Golden(
        model=AutoModelForCausalLM.from_pretrained(MODEL),
        args=CWGRPOConfig(**BASE, output_dir=str(tmp_path), cw_weights=name),
        reward_funcs=lambda completions, **_: golden.ADVANTAGES.tolist(),
        train_dataset=prompts(),
    )
    trainer.model.train()
    rows = [prompt for prompt in prompts(QUESTIONS[:2]) for _ in range(4)]
    found = trainer._generate_and_score_completions(rows)
    mask = golden.of_tokens("response_mask").bool()
    assert found["completion_mask"].bool().equal(mask)
    advantages = found["advantages"].expand(mask.shape) if name != "none" else found["advantages"][:, None] * mask
    torch.testing.assert_close(advantages[mask].double(), golden.weighted(name)[mask], rtol=1e-3, atol=1e-4)


def launch(folder: Path, scenarios: dict[str, dict[str, Any]], processes: int = 2, **environment: str) -> dict:
    """What each process kept of each scenario."""
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes)
    environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    arguments = (*command, ROOT / "tests" / "tools" / "trl_training.py", folder, json.dumps(scenarios))
    result = python(*arguments, **environment)
    assert result.returncode == 0, result.stderr[-5000:]
    return {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(processes)]
        for name in scenarios
    }


def test_two_processes_that_share_a_group(tmp_path):
    """Six rows to a process and groups of four: the second prompt's responses lie on both."""
    scenarios: dict[str, dict[str, Any]] = {
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_iterations": 2},
        "unscored": {"per_device_train_batch_size": 6, "max_steps": 1, "reward": "every_third_unscored"},
    }
    found = launch(tmp_path, scenarios)
    check_weights(found["accumulated"], 24)
    check_weights(found["unscored"], 12, score=every_third_unscored)
    batches = [batch for one in found["unscored"] for batch in one["at_loss"]]
    assert [len(batch["prompt_ids"]) for batch in batches] == [6, 6]
    rows = [unpadded(batch, row)[:2] for batch in batches for row in range(6)]
    scored = [(prompt, ids) for prompt, ids in rows if every_third_unscored([ids])[0] is not None]
    (record,) = read_tokens(tmp_path / "unscored")
    assert sorted(record.table["token_id"].to_pylist()) == sorted(token for _, ids in scored for token in ids)
    assert record.tokens == record.table.num_rows and len(scored) < len(rows)
    assert record.groups == len({prompt for prompt, _ in scored})
    recorded = dict(zip(*(record.table[name].to_pylist() for name in ("row", "reward")), strict=True))
    assert sorted(recorded.values()) == sorted(every_third_unscored([ids])[0] for _, ids in scored)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_trls_loss_takes_one_advantage_for_each_token(tmp_path, loss_type):
    """On policy every ratio is 1, so the loss is the mean of -w~ A, as each type takes its mean."""
    run = train(tmp_path, loss_type=loss_type, max_steps=1)
    (batch,) = run.at_loss
    mask, summed = batch["completion_mask"], (batch["advantages"] * batch["completion_mask"]).sum(1)
    means = {"grpo": summed / mask.sum(1) / 8, "dapo": summed / mask.sum(), "dr_grpo": summed / (8 * 16)}
    assert batch["loss"] == pytest.approx(-means[loss_type].sum().item(), abs=1e-6)
    assert abs(batch["loss"]) > 1e-3

    (log,) = (entry for entry in run.state.log_history if "loss" in entry)
    names = {name.removeprefix("cw_grpo/") for name in log if name.startswith("cw_grpo/")}
    assert names == {*CovarianceStatistics.__dataclass_fields__, "seconds"}
    sigmas = check_weights([kept(run)], 8)
    assert len(sigmas) == 2 and log["cw_grpo/sigma"] == pytest.approx(sum(sigmas) / 2, rel=1e-4)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_cispo_multiplies_the_log_prob_of_each_token_by_its_own_weight(tmp_path, level):
    """In the first of two iterations the policy is the one that sampled, and the ratio 1, whosever it is."""
    cispo = {"loss_type": "cispo", "importance_sampling_level": level, "num_iterations": 2, "epsilon_high": 5}
    run = train(tmp_path, max_steps=1, **cispo)
    (batch,) = run.at_loss
    check_weights([kept(run)], 8)
    per_token = -batch["advantages"] * batch["old_per_token_logps"] * batch["completion_mask"]
    assert batch["loss"] == pytest.approx((per_token.sum() / batch["completion_mask"].sum()).item(), rel=1e-5)


@pytest.mark.slow
def test_vllm_in_the_trainers_process(tmp_path):
    """Weights are synchronised after the first step. VERL_PLATFORM turns on this project's patch of vLLM on a CPU."""
    environment = {"VERL_PLATFORM": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256, "vllm_gpu_memory_utilization": 0.1}
    found = launch(tmp_path, {"vllm": vllm}, 1, **environment)["vllm"]
    check_weights(found, 16)
    assert all("importance_sampling_ratio" in batch for batch in found[0]["at_loss"])
