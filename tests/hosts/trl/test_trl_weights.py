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
from reference_weightings import OF_LITERATURE
from transformers import AutoModelForCausalLM
from trl import GRPOConfig
from trl_checks import LORA, check_weights, unpadded
from trl_on_device import CWOnDevice
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
        pytest.param(WatchedCW, {"reward_funcs": in_order}, {"max_steps": 1}, 8, id="an-advantage-of-0"),
    ],
)
def test_every_row_at_the_loss_has_the_weights_of_its_whole_group(tmp_path, trainer, given, options, rows):
    run = train(tmp_path, trainer, given, **options)
    score = given.get("reward_funcs", reward)
    check_weights([kept(run)], rows, options.get("cw_scope", "group"), score)
    if score is in_order:
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


QUICK = ("gaussian", "ar", "stare_gated", "high_entropy", "steer", "eda")


def test_a_weighting_gets_entropies_where_trl_computes_no_old_log_probs(tmp_path):
    """On a device."""
    run = train(tmp_path, CWOnDevice, cw_weights="high_entropy", max_steps=1)
    check_weights([kept(run)], 8, weights="high_entropy")
    assert not run._cw_computed


def test_a_weighting_gets_the_entropies_of_old_log_probs(tmp_path):
    """And not those of the reference model, the same without its adapter."""
    given = {"peft_config": replace(LORA, lora_dropout=0.0)}
    run = train(tmp_path, given=given, cw_weights="steer", beta=0.04, **TWICE)
    check_weights([kept(run)], 16, weights="steer")
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


def test_responses_that_a_function_leaves_unscored_in_two_processes_that_share_a_group(tmp_path):
    """Six rows to a process and groups of four: the second prompt's responses lie on both."""
    functions, parts = (every_third_unscored, two_thirds_unscored), (1.0, 0.5)
    options = {"reward": [function.__name__ for function in functions], "reward_weights": parts}
    found = launch(tmp_path, {"unscored": {"per_device_train_batch_size": 6, "max_steps": 1, **options}})["unscored"]

    def total(ids: tuple[int, ...]) -> float | None:
        scores = [function([ids])[0] for function in functions]
        known = [score * part for score, part in zip(scores, parts, strict=True) if score is not None]
        return sum(known) if known else None

    def score(completions: list[tuple[int, ...]]) -> list[float | None]:
        """The oldest TRL trains on a response without any score as on a reward of 0."""
        unscored = 0.0 if trl.__version__ == TRL.oldest else None
        return [unscored if total(ids) is None else total(ids) for ids in completions]

    check_weights(found, 12, score=score)
    batches = [batch for one in found for batch in one["at_loss"]]
    assert [len(batch["prompt_ids"]) for batch in batches] == [6, 6]
    rows = [unpadded(batch, row) for batch in batches for row in range(6)]
    assert {sum(function([ids])[0] is None for function in functions) for _, ids, *_ in rows} == {0, 1, 2}
    trained = [(prompt, ids) for prompt, ids, _, advantages in rows if total(ids) is not None or any(advantages)]
    (record,) = read_tokens(tmp_path / "unscored")
    assert sorted(record.table["token_id"].to_pylist()) == sorted(token for _, ids in trained for token in ids)
    assert record.tokens == record.table.num_rows and record.groups == len({prompt for prompt, _ in trained})
    recorded = dict(zip(*(record.table[name].to_pylist() for name in ("row", "reward")), strict=True))
    scored = [total(ids) for _, ids, *_ in rows if total(ids) is not None]
    assert sorted(reward for reward in recorded.values() if not math.isnan(reward)) == sorted(scored)


@pytest.mark.parametrize(
    ("loss_type", "level"), [*((name, "token") for name in ("grpo", "dapo", "dr_grpo", "cispo")), ("cispo", "sequence")]
)
def test_trls_loss_multiplies_each_token_by_its_own_weight(tmp_path, loss_type, level):
    """In the first of two iterations the policy is the one that sampled, and every ratio 1. So the loss is the mean of
    -w~ A, or with CISPO of -w~ A log pi, as each type takes its mean."""
    chosen = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon_high": 5}
    run = train(tmp_path, max_steps=1, num_iterations=2, **chosen)
    (batch,) = run.at_loss
    mask, per_token = batch["completion_mask"], -batch["advantages"] * batch["completion_mask"]
    if loss_type == "cispo":
        per_token = per_token * batch["old_per_token_logps"]
    summed, mean = per_token.sum(1), per_token.sum() / mask.sum()
    means = {"grpo": (summed / mask.sum(1)).mean(), "dapo": mean, "cispo": mean, "dr_grpo": summed.sum() / (8 * 16)}
    assert batch["loss"] == pytest.approx(means[loss_type].item(), rel=1e-5, abs=1e-6)
    assert abs(batch["loss"]) > 1e-3

    (log,) = (entry for entry in run.state.log_history if "loss" in entry)
    names = {name.removeprefix("cw_grpo/") for name in log if name.startswith("cw_grpo/")}
    assert names == {*CovarianceStatistics.__dataclass_fields__, "seconds"}
    sigmas = check_weights([kept(run)], 8)
    assert len(sigmas) == 2 and log["cw_grpo/sigma"] == pytest.approx(sum(sigmas) / 2, rel=1e-4)


@pytest.mark.slow
def test_vllm_in_the_trainers_process(tmp_path):
    """Weights are synchronised after the first step. VERL_PLATFORM turns on this project's patch of vLLM on a CPU."""
    environment = {"VERL_PLATFORM": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256, "vllm_gpu_memory_utilization": 0.1}
    found = launch(tmp_path, {"vllm": vllm}, 1, **environment)["vllm"]
    check_weights(found, 16)
    assert all("importance_sampling_ratio" in batch for batch in found[0]["at_loss"])
