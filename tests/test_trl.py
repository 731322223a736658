"""CWGRPOTrainer, by real training on a CPU: of the small model of the quickstart, in one process and in two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import trl
import yaml
from peft import LoraConfig, get_peft_model
from reference import reference_weights
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_training import MODEL, QUESTIONS, Watched, config, every_third_unscored, kept, prompts, reward, train

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.reports.records import read_tokens
from cw_plugin.reports.runs import read_run
from cw_plugin.reports.tables import table_5
from cw_plugin.trl_integration import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.trl_integration.checks import TESTED, check_settings, check_trl
from cw_plugin.trl_integration.recording import Records

TESTS = Path(__file__).parent
LORA = LoraConfig(r=4, lora_dropout=0.3, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
PADDING = {"pad_to_multiple_of": 64} if "pad_to_multiple_of" in GRPOConfig.__dataclass_fields__ else {}  # not in 0.29

pytestmark = pytest.mark.filterwarnings("ignore")


class WatchedGRPO(Watched, GRPOTrainer):
    pass


def unpadded(batch: dict[str, Any], row: int) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[float]]:
    """Prompt, completion, and the mask and the advantage of each of its tokens, of one row at the loss."""
    prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
    there = batch["completion_mask"][row].bool()
    mask = (batch["completion_mask"] * batch.get("tool_mask", 1))[row]
    assert not batch["advantages"][row][mask == 0].any()
    tokens, advantages = batch["completion_ids"][row][there], batch["advantages"][row][there]
    return tuple(prompt.tolist()), tuple(tokens.tolist()), mask[there].tolist(), advantages.tolist()


def log_probs(policy: dict[str, torch.Tensor], prompt: tuple[int, ...], completion: tuple[int, ...]) -> list[float]:
    """By plain transformers, one sequence at a time without padding, under the policy that sampled it."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    if any("lora" in name for name in policy):
        model = get_peft_model(model, LORA).eval()
    model.load_state_dict(policy)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return F.log_softmax(logits.double(), -1)[torch.arange(len(completion)), list(completion)].tolist()


def padded(values: list, width: int) -> list:
    return [*values, *[0] * (width - len(values))]


def check_weights(processes: list[dict[str, Any]], size: int = 4, scope: str = "group", score: Any = reward) -> int:
    """Each row at the loss of any process has the reference's weights of its whole group; returns how many rows."""
    rows: dict[int, list[tuple]] = defaultdict(list)
    for process in processes:
        for batch in process["at_loss"]:
            rows[batch["batch"]] += [unpadded(batch, row) for row in range(len(batch["prompt_ids"]))]
    for number, of_batch in rows.items():
        groups = defaultdict(list)
        for prompt, completion, mask, advantages in of_batch:
            groups[prompt].append((completion, mask, advantages))
        flat = []
        for prompt, responses in groups.items():
            # A second iteration shows every row once more, which changes neither mean nor weights.
            assert len(responses) % size == 0
            once = sorted(responses)[:: len(responses) // size]
            scored = [value for value in score([list(completion) for completion, *_ in once]) if value is not None]
            rewards = torch.tensor(scored, dtype=torch.float64)
            deviation = rewards.std() + 1e-4
            for completion, mask, found in responses:
                (of_row,) = score([list(completion)])
                a = 0.0 if of_row is None else (of_row - rewards.mean().item()) / deviation.item()
                mask = [0] * len(mask) if of_row is None else mask
                flat.append((prompt, log_probs(processes[0]["policies"][number], prompt, completion), a, mask, found))
        width = max(len(mask) for *_, mask, _ in flat)
        weights, _ = reference_weights(
            [padded(x, width) for _, x, *_ in flat],
            [a for _, _, a, *_ in flat],
            [padded(mask, width) for *_, mask, _ in flat],
            [prompt if scope == "group" else 0 for prompt, *_ in flat],
        )
        for (_, _, a, _, found), w in zip(flat, weights, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(w[: len(found)]) * a, atol=3e-5, rtol=3e-5)
    return sum(map(len, rows.values()))


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        pytest.param({}, 16, id="defaults"),
        pytest.param({"cw_scope": "batch"}, 16, id="batch"),
        pytest.param({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, 16, id="accumulation"),
        pytest.param({"num_iterations": 2}, 16, id="two-iterations"),
        pytest.param(
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
            8,
            id="steps-per-generation",
        ),
        pytest.param({"loss_type": "grpo", "beta": 0.04, **PADDING}, 16, id="kl-and-padding"),
    ],
)
def test_every_row_at_the_loss_has_the_weights_of_its_whole_group(tmp_path, options, rows):
    run = train(tmp_path, **options)
    assert check_weights([kept(run)], 4, options.get("cw_scope", "group")) == rows


def launch(
    folder: Path, scenarios: dict[str, dict[str, Any]], processes: int = 2, **environment: str
) -> dict[str, list[dict[str, Any]]]:
    """What each process kept of each scenario."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    result = subprocess.run(
        [*command, TESTS / "trl_training.py", folder, json.dumps(scenarios)],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-5000:]
    return {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(processes)]
        for name in scenarios
    }


def test_two_processes_that_share_a_group(tmp_path):
    """Six rows to a process and groups of four: the second prompt's responses lie on both."""
    scenarios: dict[str, dict[str, Any]] = {
        "split": {"per_device_train_batch_size": 6},
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_iterations": 2},
        "unscored": {"per_device_train_batch_size": 6, "reward": "every_third_unscored"},
        "recorded": {"per_device_train_batch_size": 6, "cw_record_every": 1, "max_steps": 1},
    }
    found = launch(tmp_path, scenarios)
    assert check_weights(found["split"]) == 24
    assert check_weights(found["accumulated"]) == 24
    assert check_weights(found["unscored"], score=every_third_unscored) == 24
    for processes in found.values():
        assert [e for e in processes[0]["log"] if "loss" in e] and len(processes) == 2
    first = found["recorded"]
    tokens = sum(int(batch["completion_mask"].sum()) for process in first for batch in process["at_loss"])
    (record,) = read_tokens(tmp_path / "recorded")
    assert record.table.num_rows == record.tokens == tokens


def parameters(run: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def with_dropout() -> Any:
    """Every random number that one trainer draws and the other does not would show."""
    return AutoModelForCausalLM.from_pretrained(MODEL, attention_dropout=0.1)


@pytest.mark.parametrize("options", [{}, {"per_device_train_batch_size": 4, "num_iterations": 2, "max_steps": 4}])
def test_kernel_none_is_grpotrainer_bit_for_bit(tmp_path, options):
    runs = {
        kernel: train(tmp_path, trainer, cw_kernel=kernel, trainer_options={"model": with_dropout()}, **options)
        for kernel, trainer in (("none", CWGRPOTrainer), ("gaussian", CWGRPOTrainer))
    }
    plain = train(tmp_path, GRPOTrainer, trainer_options={"model": with_dropout()}, **options)
    assert same(parameters(runs["none"]), parameters(plain))
    assert not same(parameters(runs["gaussian"]), parameters(plain))
    logged = [entry for entry in runs["none"].state.log_history if "cw_grpo/sigma" in entry]
    assert logged and all(entry["cw_grpo/weight_mean"] == 1 for entry in logged)


def test_a_plain_grpoconfig_is_cw_grpo_with_its_defaults(tmp_path):
    fields = {name for name in CWGRPOConfig.__dataclass_fields__ if name.startswith("cw_")}
    assert {"cw_scope", "cw_kernel", "cw_record_every", "cw_entropy_low"} < fields
    of_config = train(tmp_path / "ours")
    ours = config(tmp_path / "theirs").to_dict()
    kept_by_trl = {name: ours[name] for name in ("use_cpu", "bf16", "max_steps", "num_generations", "logging_steps")}
    kept_by_trl |= {name: ours[name] for name in ("per_device_train_batch_size", "max_completion_length")}
    plain = GRPOConfig(str(tmp_path), learning_rate=1e-3, save_strategy="no", report_to="none", **kept_by_trl)
    assert same(parameters(of_config), parameters(train(tmp_path, args=plain)))
    written = json.loads((tmp_path / "training_args.json").read_text())
    assert {name: written[name] for name in fields} == {name: getattr(of_config.args, name) for name in fields}


def test_the_verl_estimator_gives_the_same_weights(tmp_path):
    import numpy as np
    from verl.trainer.config import AlgoConfig

    from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage

    run = train(tmp_path, max_steps=1)
    (batch,) = run.at_loss
    rows = [unpadded(batch, row) for row in range(8)]
    mask = batch["completion_mask"]
    old_log_probs, rewards = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for row, (prompt, completion, *_) in enumerate(rows):
        old_log_probs[row, : len(completion)] = torch.tensor(log_probs(run.policies[0], prompt, completion))
        rewards[row, 0] = reward([list(completion)])[0]
    uids = np.array([str(prompt) for prompt, *_ in rows], dtype=object)
    of_verl, _ = compute_cw_grpo_advantage(rewards, mask, uids, AlgoConfig(), old_log_probs=old_log_probs)
    for uid in set(uids):  # verl adds 1e-6 to the standard deviation, and TRL 1e-4
        chosen = torch.from_numpy(uids == uid)
        deviation = rewards[chosen].sum(1).std()
        in_trls_terms = of_verl[chosen] * (deviation + 1e-6) / (deviation + 1e-4)
        torch.testing.assert_close(batch["advantages"][chosen], in_trls_terms, atol=2e-5, rtol=2e-5)


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path):
    """In the middle of an epoch: at its end transformers shuffles the next one differently in a run that resumes."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "cw_record_every": 2}
    whole, resumed = (
        train(tmp_path, resume=checkpoint, trainer_options={"train_dataset": prompts(4 * QUESTIONS)}, **options)
        for checkpoint in (None, str(tmp_path / "checkpoint-2"))
    )
    assert len(resumed.at_loss) == 2
    assert same(parameters(whole), parameters(resumed))
    assert [record.step for record in read_tokens(tmp_path)] == [1, 2, 4]


def test_peft_with_dropout_of_its_own(tmp_path):
    run = train(tmp_path, trainer_options={"peft_config": LORA})
    assert check_weights([kept(run)]) == 16
    assert any("lora_B" in name and value.any() for name, value in run.policies[1].items())


class WithTools(WatchedGRPO, CWGRPOTrainer):
    """Every third token of a response is a tool's."""

    def _generate(self, prompts):
        result = list(super()._generate(prompts))
        result[2] = [[int(at % 3 != 1) for at in range(len(ids))] for ids in result[1]]
        return tuple(result)


def test_a_tools_tokens_take_no_part(tmp_path):
    run = train(tmp_path, WithTools, max_steps=1)
    (batch,) = run.at_loss
    assert not batch["advantages"][batch["tool_mask"] == 0].any() and (batch["tool_mask"] == 0).any()
    assert check_weights([kept(run)]) == 8


def test_evaluation_is_trls(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1, "learning_rate": 0.0}
    options |= {"trainer_options": {"eval_dataset": prompts()}}
    logs = [train(tmp_path, trainer, **options).state.log_history for trainer in (CWGRPOTrainer, GRPOTrainer)]
    ours, theirs = ([entry for entry in log if "eval_loss" in entry] for log in logs)
    timing = ("runtime", "per_second")
    values = [{k: v for k, v in log[0].items() if not k.endswith(timing)} for log in (ours, theirs)]
    assert values[0] == values[1] and not any("cw_grpo" in name for name in values[0])


def test_metrics_are_those_of_the_verl_side(tmp_path):
    from cw_plugin.weights import CovarianceStatistics

    run = train(tmp_path, max_steps=1)
    (log,) = (entry for entry in run.state.log_history if "loss" in entry)
    names = {name.removeprefix("cw_grpo/") for name in log if name.startswith("cw_grpo/")}
    assert names == {*CovarianceStatistics.__dataclass_fields__, "seconds"}
    (batch,) = run.at_loss
    rows = [unpadded(batch, row) for row in range(8)]
    sigmas = []
    for prompt in {prompt for prompt, *_ in rows}:
        responses = [completion for p, completion, *_ in rows if p == prompt]
        rewards = torch.tensor(reward([list(c) for c in responses]), dtype=torch.float64)
        a = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        x = [torch.tensor(log_probs(run.policies[0], prompt, c)) for c in responses]
        spread = torch.cat([one.expand(len(values)) for one, values in zip(a, x, strict=True)])
        c = (torch.cat(x) - torch.cat(x).mean()) * (spread - spread.mean())
        sigmas.append(c.std(correction=0).item())
    assert log["cw_grpo/sigma"] == pytest.approx(sum(sigmas) / len(sigmas), rel=1e-4)


def test_every_step_that_is_due_has_a_record_of_the_batch_it_trains_on(tmp_path):
    """Two steps to a generation batch, so that none is generated in an even step; and two batches in one step."""
    train(tmp_path / "long", max_steps=6, num_iterations=2, cw_record_every=4)
    assert [record.step for record in read_tokens(tmp_path / "long")] == [1, 3]
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 1}
    train(tmp_path / "short", max_steps=1, **options)
    names = sorted(path.name for path in (tmp_path / "short" / "tokens").iterdir())
    assert names == ["step_000001-2.parquet", "step_000001.parquet"]
    train(tmp_path / "never", max_steps=1, cw_record_every=0)
    assert not (tmp_path / "never" / "tokens").exists()


def test_prompts_and_responses_go_to_the_hub_only_if_records_are_asked_for(tmp_path):
    def due(args: GRPOConfig) -> bool:
        return Records(SimpleNamespace(args=args, state=SimpleNamespace(global_step=0))).begin_batch()

    plain = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    for hub in (True, False):
        assert due(CWGRPOConfig(**plain, push_to_hub=hub, cw_record_every=1))
        assert due(CWGRPOConfig(**plain, push_to_hub=hub)) == due(GRPOConfig(**plain, push_to_hub=hub)) != hub


def test_completions_that_no_function_scores_take_no_part(tmp_path):
    run = train(tmp_path, max_steps=1, cw_record_every=1, trainer_options={"reward_funcs": every_third_unscored})
    assert check_weights([kept(run)], score=every_third_unscored) == 8
    (batch,) = run.at_loss
    lengths = [(len(tokens), sum(tokens) % 3) for _, tokens, *_ in (unpadded(batch, row) for row in range(8))]
    (record,) = read_tokens(tmp_path)
    assert record.tokens == sum(length for length, rest in lengths if rest) < sum(length for length, _ in lengths)


@pytest.mark.parametrize(("kernel", "name"), [("gaussian", "CW-GRPO"), ("none", "GRPO")])
def test_the_model_card_names_the_method_that_was_trained(tmp_path, kernel, name):
    run = CWGRPOTrainer(str(MODEL), reward, config(tmp_path, cw_kernel=kernel), train_dataset=prompts())
    run.create_model_card(model_name="small")
    card = (tmp_path / "README.md").read_text()
    assert f"This model was trained with {name}, a method" in card and f"Cite {name} as:" in card
    assert ("cw-grpo" in run.model.model_tags, "cw-grpo" in card) == (kernel == "gaussian",) * 2
    paper = yaml.safe_load((TESTS.parent / "CITATION.cff").read_text())["preferred-citation"]
    people = [f"{one['given-names']} {one['family-names']}" for one in paper["authors"]]
    cited = [paper["title"], " and ".join(people), paper["url"].rpartition("/")[2], str(paper["year"])]
    assert all(part in card.partition("```bibtex")[2] for part in cited) == (kernel == "gaussian")


class Poisoned(CWGRPOTrainer):
    def _generate(self, prompts):
        result = super()._generate(prompts)
        self.model.model.norm.weight.data.fill_(float("nan"))
        return result


def test_a_log_prob_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(NonFiniteError, match=r"log_probs is NaN or infinite .* check grad_norm"):
        train(tmp_path, Poisoned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cw_scope": "prompt"}, "cw_scope must be one of group, batch, got 'prompt'"),
        ({"cw_kernel": None}, "cw_kernel must be one of gaussian, none, got None"),
        ({"cw_record_every": -1}, "cw_record_every must be a whole number >= 0, got -1"),
        ({"cw_entropy_low": 2.0, "cw_entropy_high": 1.0}, "cw_entropy_low=2.0 must be less than cw_entropy_high=1.0"),
        ({"importance_sampling_level": "sequence"}, "averages the weights of a response away"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_model_is_loaded(tmp_path, options, message):
    with pytest.raises(OptionsError, match=message):
        CWGRPOTrainer("no/such-model", reward, config(tmp_path, **options))


def test_sequence_level_sampling_works_without_weights(tmp_path):
    train(tmp_path, CWGRPOTrainer, cw_kernel="none", importance_sampling_level="sequence", max_steps=1)


def test_ligers_loss_is_refused_where_trl_has_it(tmp_path):
    class WithLigersLoss(GRPOTrainer):
        def compute_liger_loss(self):
            raise NotImplementedError

    args = config(tmp_path)
    args.use_liger_kernel = True
    with pytest.raises(OptionsError, match="one advantage for a whole response; set use_liger_kernel=False"):
        check_settings(args, WithLigersLoss)
    if hasattr(GRPOTrainer, "compute_liger_loss"):
        with pytest.raises(OptionsError, match="use_liger_kernel"):
            CWGRPOTrainer(str(MODEL), reward, args, train_dataset=prompts())
    else:
        check_settings(args)


class Patched(GRPOTrainer):
    """As Unsloth does it: _compute_loss stands, and is not called."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(inputs["completion_ids"]).logits.sum()


def test_a_trl_of_another_shape_is_refused():
    check_trl(GRPOTrainer)
    with pytest.raises(HostError, match=r"no \(B, T\) advantages in _compute_loss"):
        check_trl(trl.RLOOTrainer)  # whose advantages are one to a response
    with pytest.raises(HostError, match=r"as test_trl has changed it, has no call of _compute_loss in compute_loss"):
        check_trl(Patched)
    with pytest.raises(HostError, match="has no _generate_and_score_completions"):
        check_trl(trl.SFTTrainer)


def test_the_options_are_flags_of_trls_parser():
    (parsed,) = trl.TrlParser(CWGRPOConfig).parse_args_and_config(
        ["--output_dir", "out", "--use_cpu", "--bf16", "false", "--cw_kernel", "none", "--cw_record_every", "7"]
    )
    assert (parsed.cw_scope, parsed.cw_kernel, parsed.cw_record_every) == ("group", "none", 7)


def test_a_report_reads_trls_files_under_verls_names(tmp_path, monkeypatch):
    """trainer_state.json and TensorBoard's events are written by different code, and give the same series."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    run = train(tmp_path / "run", report_to="tensorboard", trainer_options={"eval_dataset": prompts()})
    run.evaluate()
    run.save_state()
    of_state, of_events = read_run(tmp_path / "run").metrics, read_run(tmp_path / "tensorboard").metrics
    logged = {entry["step"]: entry for entry in run.state.log_history if "reward" in entry}
    assert of_state["critic/score/mean"].dropna().to_dict() == {step: entry["reward"] for step, entry in logged.items()}
    assert of_state["response_length/mean"].dropna().to_dict() == {
        n: e["completions/mean_length"] for n, e in logged.items()
    }
    for name in ("critic/score/mean", "actor/entropy", "actor/lr", "cw_grpo/sigma", "val-core/eval/score/mean@n"):
        ours, theirs = of_state[name].dropna(), of_events[name].dropna()
        assert ours.to_dict() == pytest.approx(theirs.to_dict()) and len(ours), name


def test_each_of_several_evaluation_sets_keeps_its_name(tmp_path):
    run = train(tmp_path, trainer_options={"eval_dataset": {"train": prompts(), "last": prompts(QUESTIONS[:1])}})
    run.evaluate()
    run.save_state()
    entries = [entry for entry in run.state.log_history if "eval_reward" in entry]
    assert [name for entry in entries for name in ("train", "last") if f"eval_{name}_loss" in entry] == [
        "train",
        "last",
    ]
    metrics = read_run(tmp_path).metrics
    for entry, name in zip(entries, ("train", "last"), strict=True):
        assert metrics[f"val-core/{name}/score/mean@n"].dropna().to_dict() == {entry["step"]: entry["eval_reward"]}
    assert not any("/eval/" in name for name in metrics)
    trained = {entry["step"]: entry["entropy"] for entry in run.state.log_history if "entropy" in entry}
    assert metrics["actor/entropy"].dropna().to_dict() == trained  # and not those of the evaluation set of this name


def test_a_report_shows_the_arguments_under_trls_names(tmp_path):
    for seed, learning_rate in ((1, 1e-3), (2, 2e-3)):
        train(tmp_path / str(seed), seed=seed, learning_rate=learning_rate, temperature=0.9).save_state()
    runs = [read_run(tmp_path / str(seed)) for seed in (1, 2)]
    assert [(run.name, run.seed) for run in runs] == [("CW-GRPO", 1), ("CW-GRPO", 2)]
    rows = {row[0]: row[1:] for row in table_5({"CW-GRPO": runs}).frame.to_numpy().tolist()}
    assert rows["learning_rate"] == ["0.001, 0.002", 1e-6] and rows["temperature"] == ["0.9", 0.7]
    assert rows["seed"][0] == "1, 2" and rows["model"][0] == ".../cpu/model"
    assert not any("." in name or "dir" in name for name in rows)


def test_entropy_is_followed_as_on_the_verl_side(tmp_path):
    run = train(tmp_path, max_steps=3)
    first, *later = (entry for entry in run.state.log_history if "loss" in entry)
    names = ("entropy_change", "entropy_forecast", "entropy_forecast_grpo")
    assert not any(f"cw_grpo/{name}" in first for name in names) and len(later) == 2
    for before, now in zip([first, *later], later, strict=False):
        lr = before["learning_rate"]
        wanted = (
            now["entropy"] - before["entropy"],
            -lr * before["cw_grpo/covariance_after"],
            -lr * before["cw_grpo/covariance_before"],
        )
        assert tuple(now[f"cw_grpo/{name}"] for name in names) == pytest.approx(wanted)
    assert [entry["learning_rate"] for entry in (first, *later)] == pytest.approx([1e-3, 2e-3 / 3, 1e-3 / 3])


def test_the_log_warns_once_when_entropy_leaves_its_bounds(tmp_path, caplog):
    run = train(tmp_path, max_steps=3, cw_entropy_low=50.0, cw_entropy_high=60.0)
    (warning,) = (record.getMessage() for record in caplog.records if record.name == "cw_plugin")
    first = next(entry for entry in run.state.log_history if "entropy" in entry)
    assert f"entropy collapse: policy entropy {first['entropy']:.4g} is below cw_entropy_low=50.0 at step 1" in warning
    assert f"was {first['cw_grpo/covariance_before']:+.3g} in the last step" in warning


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_trls_loss_takes_one_advantage_for_each_token(tmp_path, loss_type):
    """On policy every ratio is 1, so the loss is the mean of -w~ A, as each type takes its mean."""
    (batch,) = train(tmp_path, loss_type=loss_type, max_steps=1).at_loss
    mask, summed = batch["completion_mask"], (batch["advantages"] * batch["completion_mask"]).sum(1)
    means = {"grpo": summed / mask.sum(1) / 8, "dapo": summed / mask.sum(), "dr_grpo": summed / (8 * 16)}
    assert batch["loss"] == pytest.approx(-means[loss_type].sum().item(), abs=1e-6)
    assert abs(batch["loss"]) > 1e-3


@pytest.mark.skipif(trl.__version__ == TESTED[0], reason="it wants a vLLM older than the one that is installed")
def test_vllm_in_the_trainers_process(tmp_path):
    """Weights are synchronised after the first step. VERL_PLATFORM turns on this package's patch of vLLM on a CPU."""
    environment = {"VERL_PLATFORM": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256, "vllm_gpu_memory_utilization": 0.1}
    found = launch(tmp_path, {"vllm": vllm}, 1, **environment)["vllm"]
    assert check_weights(found) == 16
    assert all("importance_sampling_ratio" in batch for batch in found[0]["at_loss"])
