"""What a run of CWGRPOTrainer is beside its weights: options, checkpoints, evaluation, records, logs, model card."""

import pytest

pytest.importorskip("trl")

import json
from typing import Any

import torch
import yaml
from interpreter import ROOT
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_checks import check_weights, same
from trl_on_device import CWOnDevice
from trl_training import BASE, MODEL, QUESTIONS, kept, prompts, reward, train

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.hosts.trl.config import options
from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.lab.reports.runs import read_run
from cw_plugin.options import Options

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("options", [{}, {"per_device_train_batch_size": 4, "num_iterations": 2, "max_steps": 4}])
def test_weights_none_are_grpotrainer_bit_for_bit(tmp_path, options):
    """With dropout: every random number that one trainer draws and the other does not would show."""

    def run(trainer: type, weights: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(MODEL, attention_dropout=0.1)
        return train(tmp_path, trainer, {"model": model}, cw_weights=weights, **options)

    none, plain = run(CWGRPOTrainer, "none"), run(GRPOTrainer, "none")
    assert same(none, plain) and not same(run(CWGRPOTrainer, "gaussian"), plain)
    logged = [entry["cw_grpo/weight_mean"] for entry in none.state.log_history if "cw_grpo/sigma" in entry]
    assert logged and set(logged) == {1}


def test_a_plain_grpoconfig_takes_its_options_from_the_environment(tmp_path, monkeypatch):
    plain = GRPOConfig(**BASE, output_dir=str(tmp_path))
    monkeypatch.setenv("CW_GRPO_SCOPE", "batch")
    assert options(plain) == Options(scope="batch") and options(None) == Options(scope="batch")
    plain.push_to_hub = True
    assert options(plain) == Options(scope="batch", record_every=0)
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "7")
    assert options(plain) == Options(scope="batch", record_every=7)
    assert options(CWGRPOConfig(**BASE, output_dir=str(tmp_path))) == Options()
    monkeypatch.setenv("CW_GRPO_WEIGHT", "none")
    with pytest.raises(OptionsError, match="did you mean CW_GRPO_WEIGHTS"):
        options(plain)


def test_a_plain_grpoconfig_is_cw_grpo_with_its_defaults(tmp_path):
    one_epoch = BASE | {"max_steps": -1, "num_train_epochs": 1}
    run = train(tmp_path, given={"args": GRPOConfig(str(tmp_path), hub_token="secret", **one_epoch)})
    check_weights([kept(run)], 16)
    written = json.loads((tmp_path / "training_args.json").read_text())
    assert "secret" not in written.values()
    ours = {"cw_scope": "group", "cw_weights": "gaussian", "cw_record_every": 50, "max_steps": 2, "model": str(MODEL)}
    assert {name: written[name] for name in ours} == ours


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path):
    """In the middle of an epoch: at its end transformers shuffles the next one differently in a run that resumes."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "cw_record_every": 2}
    whole, resumed = (
        train(tmp_path, given={"resume": checkpoint, "train_dataset": prompts(4 * QUESTIONS)}, **options)
        for checkpoint in (None, str(tmp_path / "checkpoint-2"))
    )
    assert len(resumed.at_loss) == 2 and same(whole, resumed)
    assert [record.step for record in read_tokens(tmp_path)] == [1, 2, 4]


@pytest.mark.parametrize(("name", "other"), [("weights", "none"), ("scope", "batch")])
def test_a_run_is_not_resumed_under_another_method(tmp_path, name, other):
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    train(tmp_path, **options)
    trained = (tmp_path / "training_args.json").read_text()
    refusal = f"{tmp_path} has checkpoints .* {name}='(gaussian|group)', and this run has {name}='{other}'"
    for resume in (True, None):
        with pytest.raises(OptionsError, match=refusal):
            train(tmp_path, given={"resume": resume}, **{**options, "max_steps": 2, f"cw_{name}": other})
    assert (tmp_path / "training_args.json").read_text() == trained
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "latest").symlink_to(tmp_path / "checkpoint-1")
    for out, resume in (("1", str(tmp_path / "linked" / "latest")), ("2", tmp_path / "checkpoint-1")):
        with pytest.raises(OptionsError, match=refusal):
            train(tmp_path / out, given={"resume": resume}, **{**options, "max_steps": 2, f"cw_{name}": other})
        assert len(train(tmp_path / out, given={"resume": resume}, **{**options, "max_steps": 2}).at_loss) == 1
    assert len(train(tmp_path, given={"resume": True}, **{**options, "max_steps": 2}).at_loss) == 1


def test_evaluation_is_trls(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1, "learning_rate": 0.0, "cw_weights": "steer"}
    runs = [
        train(tmp_path, trainer, {"eval_dataset": prompts()}, **options) for trainer in (CWGRPOTrainer, GRPOTrainer)
    ]
    ours, theirs = ([entry for entry in run.state.log_history if "eval_loss" in entry] for run in runs)
    for entry in ours + theirs:
        for name in [name for name in entry if name.endswith(("runtime", "per_second"))]:
            del entry[name]
    assert ours and ours == theirs
    assert not runs[0]._cw_computed  # of the evaluation's batches, which would fill the memory


MICRO = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("options", "steps", "losses"),
    [
        ({"num_iterations": 2}, [1, 4], [[0], [3]]),  # two steps to a batch: that of step 4 was generated in step 3
        ({**MICRO, "steps_per_generation": 1}, [1, 1, 4, 4], [[0], [1], [6], [7]]),
        (MICRO, [1, 4], [[0, 1], [6, 7]]),
        ({**MICRO, "steps_per_generation": 4}, [1, 4], [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_every_step_that_is_due_has_a_record_of_the_batches_it_trains_on(tmp_path, options, steps, losses):
    run = train(tmp_path, CWOnDevice, max_steps=6, cw_record_every=4, **options)
    records = read_tokens(tmp_path)
    assert [record.step for record in records] == steps
    for record, numbers in zip(records, losses, strict=True):
        batches = [run.at_loss[number] for number in numbers]
        tokens = torch.cat([batch["completion_ids"][batch["completion_mask"].bool()] for batch in batches])
        assert sorted(record.table["token_id"].to_pylist()) == sorted(tokens.tolist())
    lowest = [min(record.table["gaussian"].to_pylist()) for record in records if record.step == 1]
    logged = next(entry for entry in run.state.log_history if entry["step"] == 1)  # TRL's mean over the batches of it
    assert logged["cw_grpo/weight_min"] == pytest.approx(sum(lowest) / len(lowest), rel=1e-5)
    for prompt in [prompt for record in records for prompt in record.prompts.values()]:
        assert any(question in prompt for question in QUESTIONS)
    assert all(len(set(record.prompts.values())) == record.groups for record in records)


def test_prompts_and_responses_go_to_the_hub_only_if_records_are_asked_for(tmp_path):
    plain = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    assert CWGRPOConfig(**plain).cw_record_every == 50
    assert CWGRPOConfig(**plain, push_to_hub=True).cw_record_every == 0
    assert CWGRPOConfig(**plain, push_to_hub=True, cw_record_every=7).cw_record_every == 7


def test_a_config_has_settings_as_numbers(tmp_path):
    args = CWGRPOConfig(**BASE, output_dir=str(tmp_path), cw_weights="stare", cw_settings="weight=1.05")
    assert args.cw_settings == {"share": 0.1, "weight": 1.05}


@pytest.mark.parametrize(
    ("weights", "name"),
    [("gaussian", "CW-GRPO"), ("none", "GRPO"), ("steer", "GRPO with steer token weights")],
)
def test_the_model_card_names_the_method_that_was_trained(tmp_path, weights, name):
    args = CWGRPOConfig(**BASE, output_dir=str(tmp_path), cw_weights=weights)
    run = CWGRPOTrainer(str(MODEL), reward, args, train_dataset=prompts())
    run.create_model_card(model_name="small")
    card = (tmp_path / "README.md").read_text()
    assert f"trained with {name}, " in card and f"Cite {name} as:" in card
    assert ("cw-grpo" in run.model.model_tags, "cw-grpo" in card) == (weights == "gaussian",) * 2
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    assert (paper["title"] in card) == (weights == "gaussian")


def test_a_report_reads_trls_files(tmp_path, monkeypatch):
    """trainer_state.json and TensorBoard's events are written by different code, and give the same series.

    Each of several evaluation sets keeps its name, also if it is called "train".
    """
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    sets = {"train": prompts(), "last": prompts(QUESTIONS[:1])}
    run = train(tmp_path / "1", given={"eval_dataset": sets}, seed=1, report_to="tensorboard")
    run.evaluate()
    run.save_state()
    of_state, of_events = (read_run(tmp_path / part) for part in ("1", "tensorboard"))
    logged = [entry for entry in run.state.log_history if "reward" in entry]
    names = {"critic/score/mean": "reward", "response_length/mean": "completions/mean_length"}
    names |= {"actor/entropy": "entropy", "actor/lr": "learning_rate", "cw_grpo/sigma": "cw_grpo/sigma"}
    for name, of_trl in names.items():
        series = of_state.series(name).to_dict()
        assert series == {entry["step"]: entry[of_trl] for entry in logged} and len(series) == 2
        assert series == pytest.approx(of_events.series(name).to_dict()), name
    for name in sets:
        (entry,) = (entry for entry in run.state.log_history if f"eval_{name}_loss" in entry)
        assert of_state.series(f"val-core/{name}/score/mean@n").to_dict() == {entry["step"]: entry["eval_reward"]}

    assert (of_state.name, of_state.seed) == ("CW-GRPO", 1)
