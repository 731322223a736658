"""CWGRPOTrainer, by real training on a CPU: of the small model of the quickstart, in one process and in two."""

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import trl
import yaml
from datasets import Dataset
from interpreter import python
from peft import LoraConfig, get_peft_model
from PIL import Image
from reference import grpo_advantages, reference_advantages
from reference_weightings import WEIGHTINGS, reference_weighted
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)
from trl import GRPOConfig, GRPOTrainer
from trl_on_device import CWOnDevice
from trl_training import (
    BASE,
    MODEL,
    QUESTIONS,
    WatchedCW,
    every_second_unscored,
    every_third_unscored,
    kept,
    prompts,
    reward,
    train,
)  # fmt: skip

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.host import TRL
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.hosts.trl.config import options
from cw_plugin.hosts.trl.refused_settings import check_settings, check_trl
from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.lab.reports.runs import read_run
from cw_plugin.options import Options
from cw_plugin.statistics import CovarianceStatistics

ROOT = Path(__file__).parents[3]
LORA = LoraConfig(r=4, lora_dropout=0.3, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
PADDING = {"pad_to_multiple_of": 64} if "pad_to_multiple_of" in GRPOConfig.__dataclass_fields__ else {}  # not in 0.29

pytestmark = pytest.mark.filterwarnings("ignore")


def unpadded(batch: dict[str, Any], row: int) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[float]]:
    """Prompt, completion, and the mask and the advantage of each of its tokens, of one row at the loss."""
    prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
    there = batch["completion_mask"][row].bool()
    mask = (batch["completion_mask"] * batch.get("tool_mask", 1))[row]
    assert not batch["advantages"][row][mask == 0].any()
    tokens, advantages = batch["completion_ids"][row][there], batch["advantages"][row][there]
    return tuple(prompt.tolist()), tuple(tokens.tolist()), mask[there].tolist(), advantages.tolist()


def log_probs_and_entropies(
    policy: dict[str, torch.Tensor], prompt: tuple[int, ...], completion: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """By plain transformers, one sequence at a time without padding, under the policy that sampled it."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    if any("lora" in name for name in policy):
        model = get_peft_model(model, LORA).eval()
    model.load_state_dict(policy)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    all_tokens = F.log_softmax(logits.double(), -1)
    entropies = -(all_tokens.exp() * all_tokens).sum(-1)
    return all_tokens[torch.arange(len(completion)), list(completion)].tolist(), entropies.tolist()


def padded(rows: list[list[float]], width: int) -> torch.Tensor:
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


def certain(weights: str, x: torch.Tensor, a: torch.Tensor, mask: Any, uids: Any, h: torch.Tensor) -> torch.Tensor:
    """Where rounding decides nothing. Tokens with the same tokens before them have the same log-probs and entropies but
    for that, and a weighting may choose some of them."""
    expected, sure = reference_weighted(weights, x, a, mask, uids, h), torch.ones(x.shape, dtype=torch.bool)
    chance = torch.Generator().manual_seed(0)
    for _ in range(5):
        near = [values + 1e-5 * torch.randn(x.shape, generator=chance, dtype=x.dtype) for values in (x, h)]
        sure &= (reference_weighted(weights, near[0], a, mask, uids, near[1]) - expected).abs() < 1e-3
    assert sure[mask != 0].double().mean() > 0.8
    return sure


def check_weights(
    processes: list[dict[str, Any]], rows: int, scope: str = "group", score: Any = reward, weights: str = "gaussian"
) -> list[float]:
    """``rows`` rows reached the loss of all processes, with the reference's weights of their whole groups, whose sigmas
    are returned."""
    batches: dict[int, list[tuple]] = defaultdict(list)
    sigmas: list[float] = []
    for process in processes:
        for batch in process["at_loss"]:
            batches[batch["batch"]] += [unpadded(batch, row) for row in range(len(batch["prompt_ids"]))]
    assert sum(map(len, batches.values())) == rows
    for number, shown in batches.items():
        times = max(Counter(prompt for prompt, *_ in shown).values()) // 4  # a second iteration shows each row again
        of_batch = sorted(shown)[::times]
        assert sorted(of_batch * times) == sorted(shown)
        prompts, completions, masks, found = zip(*of_batch, strict=True)
        a = grpo_advantages(score(completions), prompts, 1e-4)  # NaN for one without a score, which is not trained on
        masks = [[0] * len(mask) if math.isnan(value) else mask for mask, value in zip(masks, a, strict=True)]
        x, h = zip(
            *(log_probs_and_entropies(processes[0]["policies"][number], *row[:2]) for row in of_batch), strict=True
        )
        uids = prompts if scope == "group" else [0] * len(x)
        sigmas += [group["sigma"] for group in reference_advantages(x, a, masks, uids)[1].values()]
        width = max(map(len, masks))
        of_tokens = (padded(x, width), torch.tensor(a), padded(masks, width), uids, padded(h, width))
        expected, sure = reference_weighted(weights, *of_tokens), certain(weights, *of_tokens)
        torch.testing.assert_close(padded(found, width)[sure], expected[sure], atol=3e-5, rtol=3e-5)
    return sigmas


class Tools:
    """Every third token of a response is a tool's."""

    def _generate(self, prompts):
        result = list(super()._generate(prompts))
        result[2] = [[int(at % 3 != 1) for at in range(len(ids))] for ids in result[1]]
        return tuple(result)


class WithTools(Tools, WatchedCW):
    pass


class WithToolsOnDevice(Tools, CWOnDevice):
    pass


TWO = [every_third_unscored, every_second_unscored]
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
        pytest.param(WatchedCW, {"reward_funcs": TWO}, {"max_steps": 1}, 8, id="unscored-by-one-of-two"),
    ],
)
def test_every_row_at_the_loss_has_the_weights_of_its_whole_group(tmp_path, trainer, given, options, rows):
    run = train(tmp_path, trainer, given, **options)
    functions = given.get("reward_funcs", [reward])

    def score(completions: list[list[int]]) -> list[float | None]:
        """The sum of the scores that there are. The oldest TRL trains on a response without any as on a reward of 0."""
        of_rows = zip(*(function(completions) for function in functions), strict=True)
        known = [[value for value in of_row if value is not None] for of_row in of_rows]
        return [sum(values) if values or trl.__version__ == TRL.oldest else None for values in known]

    check_weights([kept(run)], rows, options.get("cw_scope", "group"), score)
    if functions != [reward]:
        completions = [unpadded(run.at_loss[0], row)[1] for row in range(rows)]
        scores = [function(completions) for function in functions]
        assert any(of_row.count(None) == 1 for of_row in zip(*scores, strict=True))
    if "peft_config" in given:
        assert any("lora_B" in name and value.any() for name, value in run.policies[1].items())


OF_LITERATURE = [name for name in WEIGHTINGS if name not in ("gaussian", "none")]
QUICK = ("ar", "high_entropy", "steer")
WITHOUT_OLD_LOG_PROBS = {"max_steps": 1}
WITH_THEM = {**TWICE, "beta": 0.04}  # and with those of a reference model
CASES = [(name, options) for name in OF_LITERATURE for options in (WITHOUT_OLD_LOG_PROBS, WITH_THEM)]
QUICK_CASES = [("high_entropy", WITHOUT_OLD_LOG_PROBS), ("steer", WITH_THEM)]


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*case, marks=() if case in QUICK_CASES else pytest.mark.slow) for case in CASES],
)
def test_every_weighting_reaches_the_loss(tmp_path, name, options):
    """Whether TRL computes old log-probs, with which entropies then come, or not."""
    run = train(tmp_path, cw_weights=name, **options)
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


def a_model_that_sees() -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """A small random LLaVA for pictures of 16 x 16 pixels, and its processor. Each picture makes four tokens."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    content = "{% for part in message['content'] %}{{ part['text'] if 'text' in part else '<image>' }}{% endfor %}"
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template.replace("{{ message['content'] }}", content),
    )
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    spread = {"initializer_range": 0.3}  # so that a picture changes log-probs
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=32, **layers, **spread),
        text_config=Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **layers, **spread),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **spread,
    )
    torch.manual_seed(0)
    return LlavaForConditionalGeneration(config), processor


def test_images_reach_the_forward_pass_of_the_weights(tmp_path):
    model, processor = a_model_that_sees()
    pictures = [Image.new("RGB", (16, 16), colour) for colour in ("red", "green", "blue", "white")]
    asked = Dataset.from_list([row | {"image": picture} for row, picture in zip(prompts(), pictures, strict=True)])
    given = {"model": model, "processing_class": processor, "train_dataset": asked}
    run = train(tmp_path, given=given, max_steps=1)
    (batch,) = run.at_loss
    rows = [unpadded(batch, row) for row in range(8)]
    of_prompts, completions, masks, found = zip(*rows, strict=True)
    model.load_state_dict(run.policies[0])

    def advantages(pixels: torch.Tensor) -> list[list[float]]:
        x = []
        for (prompt, completion, *_), of_row in zip(rows, pixels, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion]), pixel_values=of_row[None]).logits[0]
            log_softmax = F.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)
            x.append(log_softmax[torch.arange(len(completion)), list(completion)].tolist())
        return reference_advantages(x, grpo_advantages(reward(completions), of_prompts, 1e-4), masks, of_prompts)[0]

    assert torch.allclose(torch.tensor(found), torch.tensor(advantages(batch["pixel_values"])), atol=3e-5)
    of_others = torch.tensor(advantages(batch["pixel_values"].flip(0)))
    assert (torch.tensor(found) - of_others).abs().max() > 0.1


def launch(folder: Path, scenarios: dict[str, dict[str, Any]], processes: int = 2, **environment: str) -> dict:
    """What each process kept of each scenario."""
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes)
    environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    arguments = (*command, ROOT / "tests" / "tools" / "trl_training.py", folder, json.dumps(scenarios))
    result = python(*arguments, timeout=500, **environment)
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
    assert record.table.num_rows == record.tokens == sum(len(ids) for _, ids in scored) and len(scored) < len(rows)
    assert record.groups == len({prompt for prompt, _ in scored})
    recorded = dict(zip(*(record.table[name].to_pylist() for name in ("row", "reward")), strict=True))
    assert sorted(recorded.values()) == sorted(every_third_unscored([ids])[0] for _, ids in scored)


def same(first: Any, second: Any) -> bool:
    """Whether two trainers end with the same parameters, bit for bit."""
    one, two = first.model.state_dict(), second.model.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


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
    run = train(tmp_path, given={"args": GRPOConfig(str(tmp_path), **BASE)})
    check_weights([kept(run)], 16)
    written = json.loads((tmp_path / "training_args.json").read_text())
    ours = {"cw_scope": "group", "cw_weights": "gaussian", "cw_record_every": 50, "max_steps": 2}
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
    elsewhere = {"resume": str(tmp_path / "checkpoint-1")}
    with pytest.raises(OptionsError, match=refusal):
        train(tmp_path / "elsewhere", given=elsewhere, **{**options, "max_steps": 2, f"cw_{name}": other})
    assert len(train(tmp_path / "elsewhere", given=elsewhere, **{**options, "max_steps": 2}).at_loss) == 1
    assert len(train(tmp_path, given={"resume": True}, **{**options, "max_steps": 2}).at_loss) == 1


def test_evaluation_is_trls(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1, "learning_rate": 0.0}
    logs = [
        train(tmp_path, trainer, {"eval_dataset": prompts()}, **options).state.log_history
        for trainer in (CWGRPOTrainer, GRPOTrainer)
    ]
    ours, theirs = ([entry for entry in log if "eval_loss" in entry] for log in logs)
    for entry in ours + theirs:
        for name in [name for name in entry if name.endswith(("runtime", "per_second"))]:
            del entry[name]
    assert ours and ours == theirs


def test_every_step_that_is_due_has_a_record_of_the_batch_it_trains_on(tmp_path):
    """Two steps to a generation batch, so that none is generated in an even step."""
    train(tmp_path, max_steps=6, num_iterations=2, cw_record_every=4)
    records = read_tokens(tmp_path)
    assert [record.step for record in records] == [1, 3]
    for prompt in [prompt for record in records for prompt in record.prompts.values()]:
        assert any(question in prompt for question in QUESTIONS)


def test_prompts_and_responses_go_to_the_hub_only_if_records_are_asked_for(tmp_path):
    plain = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    assert CWGRPOConfig(**plain).cw_record_every == 50
    assert CWGRPOConfig(**plain, push_to_hub=True).cw_record_every == 0
    assert CWGRPOConfig(**plain, push_to_hub=True, cw_record_every=7).cw_record_every == 7


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


@pytest.mark.parametrize(
    ("trainers", "options"),
    [
        ((WithTools, WithToolsOnDevice), {"cw_weights": "test_weights:cauchy"}),
        ((WatchedCW, CWOnDevice), {"cw_scope": "batch", "num_iterations": 2}),
        ((WatchedCW, CWOnDevice), {"cw_weights": "steer"}),
        ((WatchedCW, CWOnDevice), {"cw_weights": "clip_cov"}),
    ],
)
def test_on_a_device_it_trains_and_records_what_it_does_on_the_cpu(tmp_path, trainers, options):
    (here, there), seen = trainers, []
    for trainer in (here, there):
        out = tmp_path / trainer.__name__
        run = train(out, trainer, max_steps=1, cw_record_every=1, **options)
        (record,) = read_tokens(out)
        logged = {name: value for entry in run.state.log_history for name, value in entry.items() if "cw_grpo" in name}
        seen.append((run, logged | {"cw_grpo/seconds": 0}, record))
    (first, first_log, first_record), (second, second_log, second_record) = seen
    names = {f"cw_grpo/{name}" for name in (*CovarianceStatistics.__dataclass_fields__, "seconds")}
    assert same(first, second) and first_log == second_log and set(first_log) == names
    assert first_record.table == second_record.table and first_record.prompts == second_record.prompts


class Poisoned(CWGRPOTrainer):
    def _generate(self, prompts):
        result = super()._generate(prompts)
        self.model.model.norm.weight.data.fill_(float("nan"))
        return result


def test_a_log_prob_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(NonFiniteError, match=r"log_probs: NaN or infinite .* check gradient norm"):
        train(tmp_path, Poisoned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cw_scope": "prompt"}, "cw_scope='prompt' is invalid"),
        ({"cw_weights": None}, "cw_weights=None is invalid"),
        ({"cw_kernel": "none"}, "cw_kernel is now cw_weights; set cw_weights='none' in its place"),
        ({"importance_sampling_level": "sequence"}, "'sequence' takes one ratio or advantage for a whole response"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_model_is_loaded(tmp_path, options, message):
    with pytest.raises(OptionsError, match=message):
        CWGRPOTrainer("no/such-model", reward, CWGRPOConfig(**BASE, output_dir=str(tmp_path), **options))
    if "importance_sampling_level" in options:  # without weights it works
        train(tmp_path, CWGRPOTrainer, cw_weights="none", max_steps=1, **options)


def test_ligers_loss_is_refused_where_trl_has_it(tmp_path):
    class WithLigersLoss(GRPOTrainer):
        def compute_liger_loss(self):
            raise NotImplementedError

    args = CWGRPOConfig(**BASE, output_dir=str(tmp_path))
    args.use_liger_kernel = True
    with pytest.raises(OptionsError, match="use_liger_kernel=True takes one ratio or advantage for a whole response"):
        check_settings(args, WithLigersLoss)
    if not hasattr(GRPOTrainer, "compute_liger_loss"):
        check_settings(args)


@pytest.mark.parametrize(
    ("name", "refused", "supported"),
    [("async_prefetch", True, False), ("use_data_producer", True, False), ("context_parallel_size", 2, 1)],
)
def test_settings_of_axolotl_that_compute_advantages_elsewhere_are_refused(tmp_path, name, refused, supported):
    args = CWGRPOConfig(**BASE, output_dir=str(tmp_path))
    for value in (supported, None):
        setattr(args, name, value)
        check_settings(args)
    setattr(args, name, refused)
    with pytest.raises(OptionsError, match=f"{name}={refused} is not supported by CW-GRPO; set it to {supported}"):
        check_settings(args)


class Patched(GRPOTrainer):
    """As Unsloth does it: _compute_loss stands, and is not called."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(inputs["completion_ids"]).logits.sum()


def test_a_trl_of_another_shape_is_refused():
    check_trl(GRPOTrainer)
    with pytest.raises(HostError, match=r"RLOOTrainer._compute_loss has no `if advantages.dim\(\) == 1:`"):
        check_trl(trl.RLOOTrainer)  # whose advantages are one to a response
    with pytest.raises(HostError, match=r"Patched.compute_loss has no `self._compute_loss\(`"):
        check_trl(Patched)
    with pytest.raises(HostError, match=r"there is no SFTTrainer\._generate_and_score_completions"):
        check_trl(trl.SFTTrainer)


def test_another_wrapper_that_has_made_advantages_of_tokens_is_refused(tmp_path, monkeypatch):
    plain = GRPOTrainer._generate_and_score_completions

    def of_tokens(self, inputs):
        batch = plain(self, inputs)
        return batch | {"advantages": batch["advantages"][:, None] * batch["completion_mask"]}

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", of_tokens)
    with pytest.raises(HostError, match=r"the advantages have the shape \(8, \d+\), .*; remove that"):
        train(tmp_path)


class Elsewhere(CWGRPOTrainer):
    """As an asynchronous trainer has it: advantages that our method has not seen. It takes an argument of its own."""

    def __init__(self, *args, data_collator=None, **kwargs):
        super().__init__(*args, **kwargs)

    _generate_and_score_completions = GRPOTrainer._generate_and_score_completions


def test_a_trainer_that_gets_its_advantages_elsewhere_is_refused(tmp_path):
    with pytest.raises(HostError, match=r"Elsewhere trains on advantages that do not come from .* plain GRPO"):
        train(tmp_path, Elsewhere, {"data_collator": list})
    train(tmp_path, Elsewhere, max_steps=1, cw_weights="none")


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
