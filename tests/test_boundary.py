"""The boundary study: its plan, its weights and losses against other computations, and its runs from start to end."""

from __future__ import annotations

import importlib
import math
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reference import reference_weights

ROOT = Path(__file__).parent.parent
BOUNDARY = ROOT / "examples" / "study" / "boundary"
MODULES = ("plan", "boundary", "train", "page", "models", "first_wrong", "task", "study")


@pytest.fixture
def boundary(monkeypatch):
    """Imports a script of the study by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "study"))
    monkeypatch.syspath_prepend(str(BOUNDARY))
    for name in MODULES:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def train(boundary):
    pytest.importorskip("trl")
    return boundary("train")


def test_the_readme_says_what_is_planned(boundary):
    plan, readme = boundary("plan"), (BOUNDARY / "README.md").read_text("utf-8")
    rates, updates = re.search(r"\| map \| learning rate ([^x]+) x updates from one batch ([^|]+) \|", readme).groups()
    assert tuple(rates.strip().split(", ")) == plan.LEARNING_RATES
    assert tuple(map(int, updates.split(", "))) == plan.UPDATES
    assert f"These are {len(plan.POINTS)} settings" in readme and len(set(plan.POINTS)) == len(plan.POINTS)
    assert f"{len(plan.SEEDS)} for GRPO and CW-GRPO at each setting, {len(plan.FIRST_SEEDS)} for Clip-Cov" in readme
    values = {
        "stale rollouts": ("stale", r"every 1, 4 or 8 steps"),
        "temperature": ("temperature", r"1 and 1.5"),
        "flipped rewards": ("wrong", r"for 0, 10 or 30%"),
        "4-bit rollouts": ("bits", r"rounded to 4 bits"),
        "fillers": ("fillers", r"0, 2 or 6 in each response"),
    }
    for row, (name, words) in values.items():
        (line,) = [line for line in readme.splitlines() if line.startswith(f"| {row} |")]
        assert words in line
        assert {getattr(point, name) for point in plan.LINES[name]} >= {
            float(value) for value in re.findall(r"[\d.]+", words)
        }
    runs = plan.runs()
    assert f"All {len(runs)} runs" in readme
    assert len(set(runs)) == len(runs) and {run.steps for run in runs} == {100}
    for method, seeds in {"grpo": 5, "cw_grpo": 5, "clip_cov": 3}.items():
        of_method = [run for run in runs if run.method == method and run.point not in plan.CONTROLS]
        assert {run.point for run in of_method} == set(plan.POINTS) and len(of_method) == seeds * len(plan.POINTS)
    assert {run.point for run in runs if run.method in plan.ABLATION} == {plan.CENTRE}
    controls = [run for run in runs if run.point in plan.CONTROLS]
    assert f"{len(controls)} more, of three seeds" in readme and {run.method for run in controls} == set(plan.METHODS)


def batch(rows: int = 16, time: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, advantages and mask of two prompt groups of eight."""
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(rows, time, generator=generator).mul(3).exp() + 1
    mask = (torch.arange(time) < torch.randint(1, time + 1, (rows, 1), generator=generator)).int()
    return log_probs, torch.randn(rows, generator=generator), mask


def test_the_kernel_of_one_sigma_gives_the_papers_weights(train):
    log_probs, advantages, mask = batch()
    z = train.covariances(log_probs, advantages[:, None], mask)[2]
    ours = train.normalised(train.kernel("cw_grpo", z), mask)
    groups = [row // train.RESPONSES for row in range(16)]
    expected, _ = reference_weights(log_probs.tolist(), advantages.tolist(), mask.tolist(), groups)
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=ours.dtype), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["width_2", "width_4", "negative", "positive"])
def test_the_other_kernels_are_their_formula(train, method):
    log_probs, advantages, mask = batch()
    w = train.kernel(method, train.covariances(log_probs, advantages[:, None], mask)[2])
    for rows in (slice(0, 8), slice(8, 16)):
        valid = mask[rows] > 0
        x = log_probs[rows][valid].double().numpy()
        a = advantages[rows, None].expand(8, 9)[valid].double().numpy()
        c = (x - x.mean()) * (a - a.mean())
        for found, value in zip(w[rows][valid].tolist(), c, strict=True):
            width = int(method[-1]) if method.startswith("width") else 1
            acts = {"negative": value < 0, "positive": value > 0}.get(method, True)
            expected = math.exp(-(value**2) / (2 * (width * c.std()) ** 2)) if acts else 1.0
            assert found == pytest.approx(expected, rel=1e-4)
    weights = train.normalised(w, mask)
    assert [float(part.sum() / n.sum()) for part, n in zip(weights.split(8), mask.split(8), strict=True)] == [
        pytest.approx(1)
    ] * 2


def test_the_metrics_are_those_of_the_extreme_tokens(train):
    """One response to one prompt is right, and one of its tokens is improbable; that is the one extreme token."""
    log_probs = torch.full((8, 4), math.log(0.9))
    log_probs[0, 2] = math.log(0.05)
    advantages = torch.tensor([2.0] + [-2 / 7] * 7)[:, None]
    found = train.metrics(log_probs, advantages, train.kernel("cw_grpo", torch.zeros(8, 4)), torch.ones(8, 4).int())
    others = 3 * (2 * 0.1) ** 2 + 28 * (2 / 7 * 0.1) ** 2
    assert found["extreme_gradient_share"] == pytest.approx((2 * 0.95) ** 2 / ((2 * 0.95) ** 2 + others), rel=1e-5)
    assert found["extreme_balance"] == pytest.approx(-1.0)
    x = [math.log(0.9)] * 31 + [math.log(0.05)]
    covariance = (x[-1] - sum(x) / 32) * 2 + sum((x[0] - sum(x) / 32) * a for a in [2] * 3 + [-2 / 7] * 28)
    assert found["covariance_before"] == pytest.approx(covariance / 32, rel=1e-5) == found["covariance_after"]


@pytest.mark.parametrize("ratio", [0.0002, 0.2])
def test_clip_cov_drops_what_verls_loss_drops(train, monkeypatch, ratio):
    """verl's own loss, differentiated: the tokens without a gradient are those that are dropped."""
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    from verl.workers.config import ActorConfig, PolicyLossConfig

    monkeypatch.setitem(train.CLIP_COV, "ratio", ratio)
    log_probs, advantages, mask = batch()
    old = log_probs + 0.3 * torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(1))
    a = 3 * advantages[:, None].expand_as(log_probs).clone()
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=16, clip_ratio_low=1.0, clip_ratio_high=1.0,
        policy_loss=PolicyLossConfig(loss_mode="clip_cov", clip_cov_ratio=ratio),
    )  # fmt: skip
    policy = log_probs.clone().requires_grad_()
    torch.manual_seed(0)
    loss = core_algos.compute_policy_loss_clip_cov(old, policy, a, mask, "token-mean", config)[0]
    (gradient,) = torch.autograd.grad(loss, policy)
    torch.manual_seed(0)
    kept = train.kept_by_clip_cov(log_probs, old, a[:, :1], mask)
    ours = log_probs.clone().requires_grad_()
    change = torch.exp(ours - old)
    loss = (torch.maximum(-a * kept * change, -a * kept * change.clamp(0, 2)) * mask).sum() / mask.sum()
    (expected,) = torch.autograd.grad(loss, ours)
    assert 0 < (kept == 0).sum() == max(int(ratio * mask.sum()), 1)
    torch.testing.assert_close(gradient, expected)


def test_answers_are_graded_as_the_packages_reward_does(train):
    from cw_plugin.rewards import compute_score

    task, rng = train.task, random.Random(0)
    for problem in task.split_problems()["test"][:5]:
        right = task.response(problem, rng)
        other = right.replace(str(math.prod(problem)), str(math.prod(problem) + 1))
        for text in (right, other, right.replace("<think>", ""), right[:-1], "", "<think></think>\\boxed{}"):
            score = compute_score("study/products", text, str(math.prod(problem)), opens_think=False)
            assert train.grade(text, math.prod(problem)) == (score["acc"], score["format"])


def test_rollout_weights_of_four_bits_have_at_most_fifteen_values_for_each_output(train):
    model = train.AutoModelForCausalLM.from_pretrained(BOUNDARY.parent / "model", dtype=torch.float32)
    copies = train.rounded(model, 4)
    layer = copies["model.layers.0.mlp.up_proj.weight"]
    assert max(len(row.unique()) for row in layer) <= 15
    assert (layer - model.model.layers[0].mlp.up_proj.weight).abs().max() < layer.abs().amax() / 7
    assert torch.equal(copies["model.embed_tokens.weight"], model.model.embed_tokens.weight)


SHORT = {"stale": {"stale": 2}, "passes": {"updates": 8, "method": "clip_cov"}, "one": {"updates": 1, "wrong": 30}}


@pytest.mark.parametrize("settings", SHORT.values(), ids=SHORT)
def test_a_run_from_start_to_end(train, boundary, monkeypatch, tmp_path, settings):
    """Two steps; the runner writes them, and does not do them again."""
    monkeypatch.setattr(train, "ANSWERS", 1)
    monkeypatch.setattr(train, "VALIDATE_EVERY", 2)
    run = replace(boundary("plan").CENTRE, steps=2, **settings)
    rows = train.train(run)
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[-1]["failed"] == 0
    assert [row.get("accuracy") is not None for row in rows] == [True, False, True]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert 0.3 < rows[0]["accuracy"] < 0.6 and rows[1]["grad_norm"] > 0
    runner = boundary("boundary")
    runner.add(tmp_path, run, rows)
    runner.add(tmp_path, replace(run, seed=2), rows[:2])
    (found, other) = runner.finished(tmp_path).items()
    assert found[0] == run and [row["step"] for row in found[1]] == [0, 1, 2]
    assert found[1][2]["reward"] == pytest.approx(rows[2]["reward"])
    assert other[0].seed == 2 and len(other[1]) == 2


def test_the_advantages_that_reach_the_loss_are_weighted(train, boundary, monkeypatch):
    """CW-GRPO's are CWGRPOTrainer's own, and a kernel of one sigma made here gives the same."""
    seen: dict[str, list[torch.Tensor]] = {}

    def of(method: str) -> list[torch.Tensor]:
        class Watched(train.BoundaryTrainer):
            def _compute_loss(self, model, inputs):
                seen.setdefault(method, []).append(inputs["advantages"] * inputs["completion_mask"])
                return super()._compute_loss(model, inputs)

        with monkeypatch.context() as patch:
            patch.setattr(train, "BoundaryTrainer", Watched)
            patch.setattr(train, "accuracy", lambda *_: 0.5)
            train.train(replace(boundary("plan").CENTRE, steps=1, method=method))
        return seen[method]

    ours, theirs = of("width_1"), of("cw_grpo")
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [math.inf, 0.01])
def test_the_optimizer_sees_gradients_up_to_the_limit(train, boundary, monkeypatch, limit):
    norms = []

    def step(self, *args, **kwargs):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm([weight.grad for weight in weights])))
        return original(self, *args, **kwargs)

    original = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(train, "accuracy", lambda *_: 0.5)
    rows = train.train(replace(boundary("plan").CENTRE, steps=1, updates=1, limit=limit))
    assert rows[1]["grad_norm"] > 0.01 and norms == pytest.approx([min(rows[1]["grad_norm"], limit)], rel=1e-3)


def test_a_run_that_is_no_longer_finite_is_an_outcome(train, boundary, monkeypatch):
    monkeypatch.setattr(train, "accuracy", lambda *_: 0.5)

    def breaking(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        return loss * math.nan if self.state.global_step == 2 else loss  # the second step's first update

    original = train.CWGRPOTrainer._compute_loss
    monkeypatch.setattr(train.CWGRPOTrainer, "_compute_loss", breaking)
    rows = train.train(replace(boundary("plan").CENTRE, steps=3))
    assert (rows[-1]["step"], rows[-1]["failed"], rows[-1]["accuracy"]) == (2, 1.0, 0.0)


def test_logits_that_overflow_are_an_outcome_and_other_errors_are_not(train, boundary, monkeypatch):
    monkeypatch.setattr(train, "accuracy", lambda *_: 0.5)
    generate = train.CWGRPOTrainer._generate_single_turn

    def overflowing(self, *args, **kwargs):
        if self.rows:  # the second step
            self.model.lm_head.weight.data[5], self.model.lm_head.weight.data[6] = 3e38, -3e38  # one logit is infinite
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(train.CWGRPOTrainer, "_generate_single_turn", overflowing)
    rows = train.train(replace(boundary("plan").CENTRE, steps=3))
    assert (rows[-1]["step"], rows[-1]["failed"], rows[-1]["accuracy"]) == (1, 1.0, 0.0)

    def broken(self, *args, **kwargs):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(train.CWGRPOTrainer, "_generate_single_turn", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        train.train(replace(boundary("plan").CENTRE, steps=3))


def test_the_first_wrong_token_is_where_no_taught_answer_goes_on(train, boundary):
    first_wrong = boundary("first_wrong")
    tokenizer = train.AutoTokenizer.from_pretrained(BOUNDARY.parent / "model")
    right = first_wrong.taught((47, 36))
    assert "<think>1410+282=1692</think>\\boxed{1692}" in right and len(right) == 4

    def found(text: str, ends: bool = True) -> str | None:
        ids = [*tokenizer.encode(text), *[tokenizer.eos_token_id] * ends]
        at = first_wrong.first_wrong(tokenizer, ids, right)
        return None if at == len(ids) else tokenizer.decode(ids[:at])

    assert found("<think>282+1410=1692</think>\\boxed{1692}") is None
    assert found("<think>282+1410=1692</think>\\boxed{1692}", ends=False) is None
    assert found("<think>282+1410=1692") == "<think>282+1410=1692"  # ends too early
    before = found("<think>1410+282=1695</think>\\boxed{1692}")
    assert before.startswith("<think>1410+282=") and "<think>1410+282=1692".startswith(before)
    assert found("1410") == ""

    texts = ["<think>282+1410=1692</think>\\boxed{1692}", "<think>282+1411=1692</think>\\boxed{1692}"] * 4
    rows = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in texts]
    time = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (time - len(row)) for row in rows])
    mask = (torch.arange(time) < torch.tensor([[len(row)] for row in rows])).int()
    kinds = first_wrong.kinds(tokenizer, ids, mask, [(47, 36)])
    assert set(kinds[0][mask[0] > 0].tolist()) == {2}
    wrong = kinds[1][mask[1] > 0].tolist()
    assert wrong == sorted(wrong, key=[2, 0, 1].index) and wrong.count(0) == 1  # right so far, wrong, after it
    assert (kinds[mask == 0] == -1).all()
    values = torch.arange(12.0).view(2, 6)  # ten of them valid: a fifth are two
    highest = first_wrong.highest_fifth(values, torch.tensor([[1] * 6, [1] * 4 + [0] * 2]))
    assert highest.nonzero().tolist() == [[1, 2], [1, 3]]


def synthetic(plan, boundary, runs, accuracy) -> dict:
    """Rows as train() returns them, whose accuracy at the end is ``accuracy(run)``.

    With GRPO the gradient norm is above 1 in every other step, and at the highest learning rate entropy rises.
    """
    share = {rate: place / 10 for place, rate in enumerate(plan.LEARNING_RATES)}
    made = {}
    for run in runs:
        rows = [{"step": step} for step in range(run.steps + 1)]
        for row in rows[1:]:
            row |= dict.fromkeys(boundary.COLUMNS[2:-1], 0.5) | {"extreme_gradient_share": share[run.lr]}
        if run.method == "grpo":
            for row in rows[2::2]:
                row["grad_norm"] = 2.0
            for row in rows[51:] if run.lr == "3e-4" else ():
                row["entropy"] = 1.5
        rows[0]["accuracy"], rows[-1]["accuracy"], rows[-1]["failed"] = 0.46, accuracy(run), 0.0
        made[run] = rows
    return made


def test_the_page_says_what_the_runs_give(boundary, tmp_path):
    """CW-GRPO prevents a loss at the highest learning rate, costs 5 points elsewhere, and loses one run."""
    plan, runner, page = boundary("plan"), boundary("boundary"), boundary("page")

    def accuracy(run) -> float:
        jitter = run.seed * 1e-3 * (run.method == "grpo")
        if run.lr == "3e-4":
            return 0.30 + jitter if run.method == "grpo" else 0.46
        if run.limit > 1:
            return 0.47 + jitter if run.method == "grpo" else 0.49
        return 0.55 + jitter if run.method == "grpo" else 0.50

    part = [run for run in plan.runs() if run.point in plan.MAP and run.updates == 2 and run.method in plan.METHODS]
    part += [run for run in plan.runs() if run.point == plan.CONTROLS[0]]
    made = synthetic(plan, runner, part, accuracy)
    lost = replace(plan.CENTRE, lr="1e-5", method="cw_grpo")
    made[lost] = made[lost][:11]
    made[lost][-1] |= {"failed": 1.0, "accuracy": 0.0}
    for run, rows in made.items():
        runner.add(tmp_path, run, rows)
    results = page.read(tmp_path)
    assert len(results) == len(part) == 46
    assert results[lost].fell and results[lost].emptied and results[lost].accuracy == 0 == results[lost].reward
    shutil.copy(page.RESULTS / "first_wrong.parquet", tmp_path)
    text = page.in_short(results, tmp_path)
    assert f"**46 of {len(plan.runs())} runs are in." in text
    assert "below GRPO's in 3 of 4 settings" in text
    assert "4 of 24 settings have 3 seeds or more" in text
    assert "significantly worse in 2 (the centre; learning rate 1e-4)" in text  # the lost run makes the third uncertain
    assert "significantly better, and GRPO ends below its start, in 1 (learning rate 3e-4)" in text
    assert "Of 20 runs of GRPO, 5 collapsed in accuracy and 0 in entropy. In 5, entropy ended above twice" in text
    assert "Of 20 runs of CW-GRPO, 1 collapsed in accuracy and 1 in entropy. In 0, entropy" in text
    assert "of Clip-Cov" not in text and "in 50% of GRPO's steps and 0% of CW-GRPO's steps" in text
    assert "CW-GRPO less GRPO with no limit on the gradient norm: +1.8 ± 0.2 points." in text
    assert "CW-GRPO: 4 of 16 settings of the map have 3 seeds." in text
    page.write_page(tmp_path, results)
    written = (tmp_path / "README.md").read_text("utf-8")
    assert "| learning rate 3e-4 | 46.0 | 30.3 ± 0.2 | - | 46.0 ± 0.0 | +15.7 ± 0.2 | < 0.001 |" in written
    assert "| +0.000 ± 0.000 | 1.500 / 0.500 | 5 / 0 of 5 | 0 / 0 of 0 | 0 / 0 of 5 |" in written
    assert all((tmp_path / f"{name}.svg").exists() for name in ("map", "lines", "early"))


def test_correlation_and_correction_are_those_of_the_plan(boundary, monkeypatch):
    page, plan = boundary("page"), boundary("plan")
    assert page.holm({"a": 0.01, "b": 0.02, "c": float("nan")}, 3) == pytest.approx({"a": 0.03, "b": 0.04})
    assert page.holm({"a": 0.03, "b": 0.02}, 2) == pytest.approx({"a": 0.04, "b": 0.04})
    assert page.correlations(page.Results()) == {}
    x = {plan.POINTS[i]: value for i, value in enumerate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])}
    monkeypatch.setattr(page.Results, "means", lambda _: x)
    monkeypatch.setattr(page, "foretold", lambda _, metric: (torch.arange(6).numpy(), -(torch.arange(6).numpy() ** 3)))
    r, low, high, p = page.correlations(page.Results())["extreme_balance"]
    assert (r, low, high) == pytest.approx((-1, -1, -1)) and 2 * 2 / 720 < p < 0.02


def test_what_is_written_is_what_the_results_give(boundary, tmp_path):
    """The page and the README's section, made anew from the committed runs."""
    page = boundary("page")
    results = page.read(page.RESULTS)
    readme = page.README.read_text("utf-8")
    assert page.with_headline(readme, results, page.RESULTS) == readme
    shutil.copytree(page.RESULTS, tmp_path, dirs_exist_ok=True)
    page.write_page(tmp_path, results)
    assert (tmp_path / "README.md").read_text("utf-8") == (page.RESULTS / "README.md").read_text("utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in page.RESULTS.iterdir()}


def test_the_numbers_of_the_text_are_those_of_the_first_wrong_token(boundary):
    page = boundary("page")
    follows = (BOUNDARY / "README.md").read_text("utf-8").split("## What follows")[1].split("## Fixed before")[0]
    said = set(re.findall(r"(?<![\d:/.])\d+\.\d+(?!\d)", follows)) - {"1.5"}  # the temperature
    first, after, others, entropy_fifth, probability_fifth = (row[1:] for row in page.first_wrong(page.RESULTS).rows)
    left = re.search(r"is ([\d.]+)% of that under GRPO", page.first_wrong(page.RESULTS).notes[0])[1]
    ratio = f"{float(first[3]) / float(first[4]):.1f}"
    results = page.read(page.RESULTS)
    worse = re.search(r"significantly worse in (\d+) ", page.in_short(results, page.RESULTS))[1]
    home = (BOUNDARY.parents[2] / "README.md").read_text("utf-8")
    assert f"in {worse} of 24 settings significantly" in " ".join(follows.split())
    assert f"in {worse}, CW-GRPO is significantly worse" in " ".join(home.split())
    for point, runs in ((replace(page.CENTRE, updates=16), 5), (page.CONTROLS[1], 3)):
        fell = {method: [run.fell for run in results.of(point, method)] for method in page.METHODS}
        assert fell == {"grpo": [False] * runs, "cw_grpo": [True] * runs}  # as the text says of both
    assert said == {*first[1:], left, ratio, *entropy_fifth[1:3], probability_fifth[1]}
    assert all(float(surprisal) <= float(entropy) for *_, surprisal, entropy in (after, others))
