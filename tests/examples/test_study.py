"""The four studies: their task, plan, models and variants of the weights, and the tables made from their results."""

import pytest

pytest.importorskip("verl")

import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from interpreter import ROOT
from safetensors.torch import load_file
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from cw_plugin.lab.intervals import holm

STUDY = ROOT / "examples" / "study"
BOUNDARY = STUDY / "boundary"


def test_the_task_has_right_answers_and_holds_problems_out_in_either_order(script):
    task = script("task")
    splits = task.split_problems()
    products = {name: [tuple(sorted(problem)) for problem in problems] for name, problems in splits.items()}
    held_out = products["test"] + products["tune"]
    assert len(set(held_out)) == 512 and not set(held_out) & set(products["train"])
    assert len(set(held_out) | set(products["train"])) == 90 * 91 / 2  # all there are
    rng, ways = random.Random(0), set()
    for a, b in splits["train"][:500]:
        pattern = r"<think>(\d+)\+(\d+)=(\d+)</think>\\boxed\{(\d+)\}"
        first, second, total, answer = map(int, re.fullmatch(pattern, task.response((a, b), rng)).groups())
        assert first + second == total == answer == a * b
        ways.add((first >= second, {first, second} == {a * (b % 10), a * (b // 10 * 10)}))
    assert len(ways) == 4


def test_a_variant_is_what_its_name_says(script):
    variants, z = script("variants"), torch.linspace(-5, 5, 42)
    group = SimpleNamespace(z=z, generator=torch.Generator().manual_seed(0))
    w = torch.exp(-(z**2) / 2)
    for width in (2, 3, 4):
        torch.testing.assert_close(getattr(variants, f"width_{width}")(group), torch.exp(-(z**2) / (2 * width**2)))
    torch.testing.assert_close(variants.negative(group), torch.where(z < 0, w, 1))
    torch.testing.assert_close(variants.positive(group), torch.where(z > 0, w, 1))
    shuffled = variants.shuffled(group)
    torch.testing.assert_close(shuffled.sort().values, w.sort().values)
    assert not torch.allclose(shuffled, w)


def table(page: Path, title: str) -> pd.DataFrame:
    """A page's table, with the first column as index."""
    text = page.read_text("utf-8").split(f"**{title}**\n\n")[1].split("\n\n")[0]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return pd.DataFrame(rows, columns=header).set_index(header[0])


def mean(values: pd.Series, digits: int = 1, sign: str = "") -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * values.sem()
    return f"{values.mean():{sign}.{digits}f} ± {half:.{digits}f}"


@pytest.mark.parametrize(
    "module, write, study",
    [
        ("report", "study_page", "."),
        ("report", "boundary_page", "boundary"),
        ("page", "main", "sizes"),
        ("curves", "main", "entropy"),
    ],
)
def test_the_committed_tables_are_those_that_the_script_writes(script, tmp_path, module, write, study):
    """That they are right is for the tests of each study."""
    committed = STUDY / study / "results"
    for file in committed.glob("*.parquet"):
        shutil.copy(file, tmp_path)
    getattr(script(module), write)(tmp_path)
    written, expected = ((folder / "README.md").read_text("utf-8") for folder in (tmp_path, committed))
    assert written.splitlines()[3:] == expected.splitlines()[3:]  # the third line is a link to the study's folder
    assert {path.name for path in tmp_path.glob("*.svg")} == {path.name for path in committed.glob("*.svg")}


def test_the_studys_tables_are_what_its_runs_say():
    page, metrics = STUDY / "results" / "README.md", pd.read_parquet(STUDY / "results" / "metrics.parquet")
    runs = metrics[metrics.phase.isin(["main", "long"])].astype({"accuracy": float, "reward": float})
    accuracy = runs[runs.step == 200].pivot(index="seed", columns="method", values="accuracy") * 100
    reward = runs[runs.step.between(176, 200)].pivot_table(index="seed", columns="method", values="reward")
    assert len(accuracy) == 5 and accuracy.notna().all(axis=None)
    methods = table(page, "Methods, mean and 95% interval over seeds")
    for method, name in {"grpo": "GRPO", "cw_grpo": "CW-GRPO (prompt group)", "cw_grpo_loss": "CW-GRPO, loss"}.items():
        assert methods.loc[name, "accuracy, %"] == mean(accuracy[method])
        assert methods.loc[name, "reward, last 25 steps"] == mean(reward[method], 3)
    others = ["grpo", "clip_cov", "clip_cov_0.005", "cw_grpo_batch", "cw_grpo_loss"]
    p = {(what, other): stats.ttest_rel(ends.cw_grpo, ends[other]).pvalue
         for what, ends in (("accuracy", accuracy), ("reward", reward)) for other in others}  # fmt: skip
    less = table(page, "CW-GRPO (prompt group) minus each other method").loc["GRPO", "accuracy, points"]
    assert less == f"{mean(accuracy.cw_grpo - accuracy.grpo, 1, '+')} (p {holm(p)['accuracy', 'grpo']:.3f})"
    tokens = pd.read_parquet(STUDY / "results" / "covariance.parquet").query("method == 'grpo' and covariance > 0")
    sizes = np.sort(np.repeat(tokens.covariance, tokens["count"]))[::-1]
    shown = table(page, "Table 1: covariance of tokens, GRPO").loc["20.00%", "positive mean"]
    assert float(shown) == pytest.approx(sizes[: round(0.2 * len(sizes))].mean(), rel=2e-3)


def test_the_boundarys_tables_are_what_its_runs_say():
    page, metrics = BOUNDARY / "results" / "README.md", pd.read_parquet(BOUNDARY / "results" / "metrics.parquet")
    settings = ["lr", "updates", "stale", "temperature", "wrong", "bits", "fillers"]
    runs = metrics[(metrics.limit == 1) & metrics.method.isin(["grpo", "cw_grpo"])].astype({"accuracy": float})
    ends = runs[runs.step == 100].pivot(index=[*settings, "seed"], columns="method", values="accuracy") * 100
    less = (ends.cw_grpo - ends.grpo).unstack("seed")
    assert less.shape == (24, 5)
    p = holm(dict(enumerate(stats.ttest_1samp(less, 0, axis=1).pvalue)), 24)  # nan, where both have nothing left
    every = table(page, "Every setting")
    shown = sorted(float(value.replace("&lt; ", "")) for value in every.p if value != "-")
    np.testing.assert_allclose(shown, sorted(p.values()), atol=6e-4)
    assert sum(value < 0.05 for value in shown) == 10
    shown = every.loc["updates 16", "CW-GRPO minus GRPO, points"]
    assert shown == mean(less.loc[("3e-5", 16, 1, 1.0, 0, 32, 0)], 1, "+")
    validated = runs[runs.method == "cw_grpo"].dropna(subset="accuracy").sort_values("step")
    accuracy = validated.groupby([*settings, "seed"]).accuracy
    together = table(page, "All settings together").loc["CW-GRPO"]
    assert together["collapsed in accuracy"] == str((accuracy.max() - accuracy.last() > 0.1).sum())


def test_a_run_is_added_to_the_committed_ones(script, tmp_path):
    plan, file = script("plan"), Path(shutil.copy(BOUNDARY / "results" / "metrics.parquet", tmp_path))
    assert plan.finished(file) == set(plan.BOUNDARY)  # none is done again
    before, rows = pq.read_schema(file).names, [{"step": 0, "accuracy": 0.5}, {"step": 1, "reward": 1.25}]
    plan.add(file, plan.of_width(64), rows)
    assert plan.finished(file) == {*plan.BOUNDARY, plan.of_width(64)}
    written = pq.read_table(file)
    assert written.schema.names == [*before, "width", "answers", "first", "seconds", "right"]  # which came later
    assert written["accuracy"].to_pylist()[-2:] == [0.5, None] and written["reward"].to_pylist()[-1] == 1.25


@pytest.mark.parametrize("width", [64, 128, 256])
def test_models_differ_in_width_alone(script, width):
    pytest.importorskip("trl")
    model = script("teach").untaught(width)
    assert model.num_parameters() == script("plan").parameters(width) and model.model.layers[0].self_attn.head_dim == 32
    for name, weight in load_file(STUDY / "model" / "model.safetensors").items():
        scaled = [n * width // 128 if n % 128 == 0 else n for n in weight.shape]
        assert list(model.state_dict()[name].shape) == scaled


def test_the_slopes_of_the_sizes_are_what_its_runs_say():
    page = STUDY / "sizes" / "results" / "README.md"
    steps = pd.read_parquet(page.with_name("metrics.parquet")).astype({"accuracy": float, "reward": float, "lr": float})
    line = steps[np.isclose(steps.lr * steps.width, 3e-5 * 128)]
    table_of = {"index": ["width", "seed"], "columns": "method"}
    ends = line[line.step == 100].pivot_table("accuracy", **table_of) * 100
    rewards = line[line.step > 75].pivot_table("reward", **table_of) * 100
    norms = line[line.step.between(1, 20)].pivot_table("grad_norm", **table_of)
    expected = {
        "accuracy, CW-GRPO minus GRPO, points": ends.cw_grpo - ends.grpo,
        "reward, CW-GRPO minus GRPO, hundredths": rewards.cw_grpo - rewards.grpo,
        "gradient norm, CW-GRPO / GRPO, %": norms.cw_grpo / norms.grpo * 100,
    }
    shown = table(page, "Slopes")["per tenfold increase in parameters"]
    for name, values in expected.items():
        width = values.index.get_level_values("width")
        (slope, _), covariance = np.polyfit(np.log10(48.0 * width**2 + 300 * width), values, 1, cov=True)
        assert shown[name] == f"{slope:.1f} ± {stats.t.ppf(0.975, 16) * covariance[0, 0] ** 0.5:.1f}"
    row = table(page, "By size").query("`learning rate` == '7.5e-06'").iloc[0]
    assert row[["pairs", "GRPO, %"]].tolist() == ["3", mean(ends.grpo[512])]


@pytest.mark.parametrize("limit", [2, 24])
@torch.no_grad()
def test_answers_are_drawn_as_often_as_the_model_gives_them(script, limit):
    """Their probabilities are those of whole answers, each in one pass without a cache."""
    sampling, task = script("sampling"), script("task")
    folder = STUDY / "sizes" / "model-64"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=sampling.ONE_TOKEN)
    asked, answers = [task.messages(problem) for problem in task.split_problems()["test"][:2]], 4000
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    torch.manual_seed(0)
    drawn = list(sampling.sampled_ids(model, tokenizer.eos_token_id, prompts, answers, limit))
    torch.manual_seed(0)
    texts = [(place, tokenizer.decode(ids, skip_special_tokens=True), count) for place, ids, count in drawn]
    assert list(sampling.sampled(model, tokenizer, prompts, answers, limit)) == texts
    for place, prompt in enumerate(prompts):
        copies = {tuple(ids): count for at, ids, count in drawn if at == place}
        assert sum(copies.values()) == answers
        for ids, count in sorted(copies.items(), key=lambda item: -item[1])[:5]:
            assert len(ids) == limit or ids[-1] == tokenizer.eos_token_id
            whole = torch.cat([prompt, torch.tensor(ids)])[None]
            log_probs = model(whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            p = log_probs[range(len(ids)), ids].sum().exp().item()
            assert p > 0.02 and abs(count - answers * p) < 4.5 * (answers * p * (1 - p)) ** 0.5


@torch.no_grad()
def test_attention_of_one_token_is_that_of_the_whole_row(script):
    folder = ROOT / "examples" / "cpu" / "model"
    own, whole = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
        for attention in (script("sampling").ONE_TOKEN, "sdpa")
    )
    torch.manual_seed(0)
    ids, cache = torch.randint(300, (4, 7)), DynamicCache()
    parts = [own(input_ids=part, past_key_values=cache).logits for part in ids.split([5, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def pass_at_1_and_16(run: pd.DataFrame) -> np.ndarray:
    """At each validation: the share of right answers, and how probably one of 16 drawn from the 64 is right."""
    right = np.array([*run.sort_values("step").right.dropna()])
    return np.stack([right.mean(1) / 64, 1 - stats.hypergeom(64, right, 16).pmf(0).mean(1)])


def where_reached(curve: np.ndarray, level: float) -> float:
    """pass@16 where pass@1 first reaches a level, between two validations."""
    after = int((curve[0] >= level).argmax())
    return float(np.interp(level, *curve[:, after - 1 : after + 1]))


def test_the_entropy_study_compares_at_equal_pass_1():
    """At its first setting: each seed at the highest pass@1 that both methods reach."""
    page = STUDY / "entropy" / "results" / "README.md"
    steps = pd.read_parquet(page.with_name("metrics.parquet")).query("width == 64 and updates == 2 and steps == 640")
    less = []
    for _, of_seed in steps.query("seed > 0").groupby("seed"):
        ours, theirs = (pass_at_1_and_16(of_seed[of_seed.method == method]) for method in ("cw_grpo", "grpo"))
        level = min(ours[0].max(), theirs[0].max())
        less.append(100 * (where_reached(ours, level) - where_reached(theirs, level)))
    shown = table(page, "width 64, 2 updates, 640 steps")
    (column,) = (name for name in shown if "less GRPO: pass@16" in name)
    p = stats.ttest_1samp(less, 0).pvalue
    assert len(less) == 5 and shown.loc["CW-GRPO", column] == f"{mean(pd.Series(less), 1, '+')} (p {p:.3f})"
