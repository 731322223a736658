"""The study's own parts: its task, the variants of its ablation, and that what is written agrees with the results."""

from __future__ import annotations

import importlib
import random
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from reference import reference_weights

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "examples" / "study"


@pytest.fixture
def study(monkeypatch):
    """Imports a script of the study by its name."""
    monkeypatch.syspath_prepend(str(STUDY))
    names = ("task", "study", "report", "variants", "ablation", "gradients")
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_the_task_has_right_answers_and_holds_problems_out_in_either_order(study):
    task = study("task")
    splits = task.split_problems()
    products = {name: [tuple(sorted(problem)) for problem in problems] for name, problems in splits.items()}
    held_out = products["test"] + products["tune"]
    assert len(set(held_out)) == 512 and not set(held_out) & set(products["train"])
    assert len(set(held_out) | set(products["train"])) == 90 * 91 / 2  # all there are
    assert len(splits["train"]) == len(set(splits["train"]))
    rng = random.Random(0)
    ways = set()
    for a, b in splits["train"][:500]:
        text = task.response((a, b), rng)
        first, second, total, answer = map(
            int, re.fullmatch(r"<think>(\d+)\+(\d+)=(\d+)</think>\\boxed\{(\d+)\}", text).groups()
        )
        assert first + second == total == answer == a * b
        ways.add((first >= second, {first, second} == {a * (b % 10), a * (b // 10 * 10)}))
    assert len(ways) == 4


def test_held_out_problems_are_asked_twice_and_graded_by_the_reward(study, tmp_path):
    from cw_plugin.rewards import compute_score

    task = study("task")
    task.write_problems(tmp_path)
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert [row["prompt"][0]["content"] for row in rows[:2]] == ["{}*{}".format(*task.split_problems()["test"][0])] * 2
    a, b = task.split_problems()["test"][0]
    for answer, right in ((a * b, 1.0), (a * b + 1, 0.0)):
        text = f"<think>0+{answer}={answer}</think>\\boxed{{{answer}}}"
        score = compute_score(rows[0]["data_source"], text, rows[0]["reward_model"]["ground_truth"], opens_think=False)
        assert (score["acc"], score["format"]) == (right, 1.0)


def plain_weights(log_probs, advantages, variant):
    """The variants once more, token by token."""
    x, a = (values - (0 if variant == "uncentred" else values.mean()) for values in (log_probs, advantages))
    c = x * a
    w = np.array([np.exp(-(value**2) / (2 * c.var())) for value in c])
    return w if variant == "unnormalised" else w / w.mean()


@pytest.mark.parametrize("variant", ["uncentred", "unnormalised", "shuffled"])
def test_a_variant_of_the_ablation_changes_what_it_says(variant, study, monkeypatch):
    monkeypatch.setenv("VARIANT", variant)
    from cw_plugin.verl_integration import estimator
    from cw_plugin.weights import reweight_responses

    monkeypatch.setattr(estimator, "reweight_responses", reweight_responses)  # put back after the test
    study("ablation")  # as verl imports it
    assert estimator.reweight_responses.func is study("variants").reweight
    assert estimator.reweight_responses.args == (variant,)
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(6, 9, generator=generator)
    advantages = torch.randn(6, generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([9, 3, 5, 9, 1, 7])[:, None]
    group = torch.tensor([0, 1, 0, 1, 0, 1])
    result, statistics = estimator.reweight_responses(log_probs, advantages, mask.int(), group, "gaussian")
    assert (result[~mask] == 0).all()
    papers = np.array(
        reference_weights(log_probs.tolist(), advantages.tolist(), mask.int().tolist(), group.tolist())[0]
    )
    after = 0.0
    for number in (0, 1):
        tokens = mask & (group == number)[:, None]
        x, a = log_probs[tokens].double().numpy(), advantages[:, None].expand(6, 9)[tokens].double().numpy()
        got = result[tokens].numpy() / a
        if variant == "shuffled":
            np.testing.assert_allclose(np.sort(got), np.sort(papers[tokens.numpy()]), rtol=1e-5)
        else:
            np.testing.assert_allclose(got, plain_weights(x, a, variant), rtol=1e-5)
        assert not np.allclose(got, papers[tokens.numpy()], rtol=0.1)
        after += ((x - x.mean()) * got * a).sum()
    assert statistics.covariance_after == pytest.approx(after / int(mask.sum()), rel=1e-4)


def test_a_gradient_is_measured_by_the_products_of_different_batches(study):
    """Known mean gradients in noise far longer than they are; a batch's product with itself would show that."""
    gradients = study("gradients")
    rng = np.random.default_rng(0)
    batches, size = 400, 2000
    policy, other = np.zeros(size), np.zeros(size)
    policy[0], other[:2] = 1.0, (0.4, 0.3)
    noise = rng.normal(size=(batches, size)) / 10
    samples = {"reward": policy + noise, "grpo": 2 * policy + 2 * noise, "ours": other + noise}
    squares = {name: (values**2).sum(1) for name, values in samples.items()}
    products = {name: values @ samples["reward"].T for name, values in samples.items()}

    def quantities(kept):
        at = np.ix_(kept, kept)
        return gradients.relative_to(
            squares["ours"][kept], products["ours"][at], squares["grpo"][kept], products["grpo"][at]
        )

    length = np.sqrt((0.25 + size / 100) / (4 + 4 * size / 100))
    expected = {"length": length, "slope": 0.4 / 2, "slope_by_length": 0.2 / length}
    for row in gradients.jackknife(quantities, batches):
        assert row["value"] == pytest.approx(expected[row["quantity"]], abs=4 * row["error"])
        assert 0 < row["error"] < 0.1 * row["value"]


def test_losses_have_the_gradients_that_they_are_said_to_have(study):
    """By hand from the same responses: GRPO's, CW-GRPO's and the policy gradient, and what low weights hold."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gradients, task = study("gradients"), study("task")
    tokenizer = AutoTokenizer.from_pretrained(STUDY / "model", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(STUDY / "model", dtype=torch.float32).eval()
    problems = task.split_problems()["train"][:3]
    torch.manual_seed(1)
    losses, held = gradients.losses_of(model, tokenizer, problems)
    torch.manual_seed(1)
    prompts = tokenizer.pad({"input_ids": [task.prompt_ids(tokenizer, p) for p in problems]}, return_tensors="pt")
    ids, mask, texts, _ = task.sample(model, tokenizer, prompts, task.MAX_NEW_TOKENS)
    answers = np.repeat([a * b for a, b in problems], 8)
    right = [text.endswith(f"\\boxed{{{answer}}}") for text, answer in zip(texts, answers, strict=True)]
    formatted = [re.fullmatch(r"<think>[^<]*</think>[^<]*", text) is not None for text in texts]
    rewards = np.array(right, float) + np.array(formatted)
    assert 0 < np.mean(right) < 1
    by_group = rewards.reshape(3, 8)
    centred = (by_group - by_group.mean(1, keepdims=True)).ravel()
    scale = np.repeat(by_group.std(1, ddof=1) + 1e-6, 8)
    lengths = mask.sum(1)

    begin = prompts["input_ids"].shape[1]
    log_probs, squares = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for i in range(len(ids)):  # one response after the other, without what stands after its end
        row = ids[i, : begin + lengths[i]]
        after = model(row[None]).logits[0].log_softmax(-1)[begin - 1 : -1]
        log_probs[i, : lengths[i]] = after[torch.arange(lengths[i]), row[begin:]]
        one_hot = torch.nn.functional.one_hot(row[begin:], after.shape[-1])
        squares[i, : lengths[i]] = (one_hot - after.detach().exp()).square().sum(-1)
    advantages = centred / scale
    plain = torch.tensor(advantages, dtype=torch.float32)[:, None] * mask
    uids = np.repeat(np.arange(3), 8).tolist()
    weights, groups = reference_weights(log_probs.tolist(), advantages.tolist(), mask.int().tolist(), uids)
    kernels = torch.tensor(weights) * torch.tensor([groups[uid]["sum_w"] / groups[uid]["n"] for uid in uids])[:, None]
    weak = mask & (kernels < 0.5)
    squares *= plain.square()
    live = [place for place in mask.nonzero().tolist() if plain[tuple(place)] != 0]
    least = sorted(live, key=lambda place: float(log_probs[tuple(place)]))[: weak.sum()]
    by_hand = [weak.sum(), mask.sum(), squares[weak].sum(), squares[mask].sum()]
    by_hand += [sum(squares[tuple(place)] for place in least), sum(weak[tuple(place)] for place in least)]
    torch.testing.assert_close(held, torch.stack([value.double() for value in by_hand]), rtol=1e-4, atol=1e-4)
    expected = {
        "grpo": -(plain * log_probs).sum() / lengths.sum(),
        "cw_grpo": -(torch.tensor(weights) * plain * log_probs).sum() / lengths.sum(),
        "reward": -(torch.tensor(centred)[:, None] * mask * log_probs).sum() / len(mask),
    }
    for name, loss in expected.items():
        theirs = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        ours = torch.autograd.grad(losses[name], list(model.parameters()), retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def run_of(report, method, seed=1, accuracy=(0.5, 0.5), entropy=(0.2, 0.2), reward=1.0, steps=100):
    """A run whose accuracy goes from one value to another at the end, and its entropy in a straight line."""
    step = np.arange(steps + 1)
    columns = {"step": step, "accuracy": np.full(steps + 1, np.nan), "entropy": np.linspace(*entropy, steps + 1)}
    columns["accuracy"][[0, -1]] = accuracy
    columns["reward"] = np.full(steps + 1, reward)
    columns["entropy"][0] = columns["reward"][0] = np.nan  # nothing is trained in step 0
    return report.Result("main", method, "3e-5", seed, columns)


def test_runs_are_told_apart_by_holms_method(study):
    report = study("report")
    ends = {"cw_grpo": (0.50, 0.50, 0.50), "grpo": (0.59, 0.60, 0.61), "clip_cov": (0.51, 0.52, 0.53)}
    rewards = {"cw_grpo": (1.0, 1.0, 1.0), "grpo": (1.0, 1.0, 1.0), "clip_cov": (0.7, 1.0, 1.0)}
    runs = {
        method: [
            run_of(report, method, seed, (0.5, end), reward=reward)
            for seed, (end, reward) in enumerate(zip(ends[method], rewards[method], strict=True))
        ]
        for method in ends
    }
    runs["cw_grpo_loss"] = [run_of(report, "cw_grpo_loss", 0, (0.5, 0.9))]  # one seed alone is in no test

    def p(t):  # two-sided, of Student's t with 2 degrees of freedom, in closed form
        return 1 - abs(t) / (t * t + 2) ** 0.5

    # Accuracy differs by -0.09, -0.10, -0.11 and by -0.01, -0.02, -0.03; reward not at all and by 0.3, 0, 0.
    grpo, clip_cov, reward = 4 * p(10 * 3**0.5), 3 * p(2 * 3**0.5), 2 * p(1)
    intro, _, *lines = report.verdict(runs).splitlines()
    assert "corrected for 4 tests" in intro
    assert lines == [
        f"- CW-GRPO (prompt group) against GRPO: accuracy -10.0 ± 2.5 points (p {grpo:.2f}), reward +0.000 ± 0.000 "
        "(p 1.00): a difference in accuracy.",
        f"- CW-GRPO (prompt group) against Clip-Cov, authors' ratio: accuracy -2.0 ± 2.5 points (p {clip_cov:.2f}), "
        f"reward +0.100 ± 0.430 (p {reward:.2f}): no difference is shown.",
    ]


def test_the_interval_above_the_start_is_welchs(study):
    """By hand: ends with variance 0.01 and starts with 0.04 have, of three each, t with 50 / 17 degrees of freedom."""
    from scipy import integrate, optimize, special

    report = study("report")
    runs = [run_of(report, "grpo", seed, (0.0, end)) for seed, end in enumerate((0.5, 0.6, 0.7))]
    freedom, error = 50 / 17, (0.05 / 3) ** 0.5

    def density(t):
        scale = special.gamma((freedom + 1) / 2) / (special.gamma(freedom / 2) * (np.pi * freedom) ** 0.5)
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)

    quantile = optimize.brentq(lambda t: integrate.quad(density, 0, t)[0] - 0.475, 1, 10)
    assert report.gain(runs, [0.2, 0.4, 0.6]) == f"+20.0 ± {quantile * error * 100:.1f}"
    assert report.gain(runs[:1], [0.2, 0.4, 0.6]) == "+10.0"


@pytest.mark.parametrize(
    ("accuracy", "entropy", "fell", "emptied"),
    [
        ((0.60, 0.45), (0.2, 0.2), True, False),  # 15 points below its best
        ((0.60, 0.55), (0.2, 0.2), False, False),
        ((0.50, 0.70), (0.2, 0.0), False, False),  # 0.024 at the end, of 0.174: 0.14
        ((0.50, 0.70), (0.4, -0.04), False, True),  # 0.013 of 0.342: 0.04
    ],
)
def test_a_collapse_is_what_the_readme_says(accuracy, entropy, fell, emptied, study):
    result = run_of(study("report"), "grpo", accuracy=accuracy, entropy=entropy)
    assert (result.fell, result.emptied) == (fell, emptied)
    assert result.entropy_wobble == pytest.approx(0, abs=1e-12)  # a straight line has none


def test_the_search_takes_the_best_mean_of_two_validations(study, tmp_path, monkeypatch):
    module = study("study")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    best = {job: 0.3 for job in module.search()}
    for method, lr in (("grpo", "1e-4"), ("clip_cov", "1e-5"), ("clip_cov_0.02", "3e-5"), ("cw_grpo", "3e-5")):
        best[module.Job("search", method, lr, 0, module.SEARCH_STEPS)] = 0.4
    rows = []
    for job, mean in best.items():
        for step, accuracy in ((0, 0.9), (50, mean - 0.2), (75, None), (100, mean + 0.2)):
            rows.append({name: getattr(job, name) for name in module.KEY} | {"step": step, "accuracy": accuracy})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "metrics.parquet")
    assert module.chosen()[:4] == [
        ("grpo", "1e-4"), ("clip_cov", "1e-5"), ("clip_cov_0.02", "3e-5"), ("cw_grpo", "3e-5")
    ]  # fmt: skip


def hand_written(report) -> list[str]:
    """Every passage of "What came out" that has a number, with the number as the results give it."""
    job = report.study
    results, covariance = report.read_results(report.RESULTS), report.read_covariance(report.RESULTS)
    gradients = report.read_gradients(report.RESULTS)
    search, main, long, ablation = (report.of(results, phase) for phase in ("search", "main", "long", "ablation"))
    start = report.starts(results)

    def cell(table, row, column):
        (cells,) = [cells for cells in table.rows if cells[0] == row]
        return cells[table.header.index(column)]

    def held(column):
        return cell(report.concentration(covariance), "GRPO", column)

    def threshold(column):
        return cell(report.table_1("GRPO", covariance["grpo"]), "1.00%", column)

    def entropy(runs):
        return report.shown([run.entropy for run in runs], digits=3).split(" ± ")[0]

    def late(method, end):
        """Reward and entropy of a long run over the 100 steps up to one."""
        return [f"{long[method][0].mean(quantity, end, 100):.3f}" for quantity in ("reward", "entropy")]

    def final(runs):
        return report.shown([run.accuracy for run in runs], 100)

    def above(ours, theirs, sign=""):
        return report.shown(report.differences(ours, theirs, "accuracy"), 100, 1, sign)

    def searched(method):
        (run,) = [run for run in search[method] if run.lr == "1e-4"]
        return [f"{value * 100:.1f}" for value in run.series("accuracy").values()]

    def best(method):
        return cell(report.rates(search), report.NAMES[method], "1e-4")

    def pointed(method, quantity):
        return report.estimate(gradients[method, quantity])

    def share(quantity):
        return f"{gradients['cw_grpo', quantity][0]:.0%}"

    (grpo, ours), (grpo_long,), (ours_long,) = (main["grpo"], main["cw_grpo"]), long["grpo"], long["cw_grpo"]
    (reward, low), (grpo_reward, grpo_low) = late("cw_grpo", 1000), late("grpo", 300)
    (batch_reward, batch_low), (loss_reward, loss_low) = late("cw_grpo_batch", 1000), late("cw_grpo_loss", 1000)
    validations = searched("cw_grpo")
    length = pointed("cw_grpo", "length").split(" ± ")[0]
    slopes = [pointed(method, "slope").split(" ± ")[0] for method in ("clip_cov_0.005", "clip_cov_0.02")]
    shuffled, parts = ablation["cw_grpo_shuffled"], ("batch", "uncentred", "unnormalised")
    batch, uncentred, unnormalised = (above(ablation[f"cw_grpo_{part}"], ours, "+") for part in parts)
    return [
        # The paper's tables and figures, and another's paper
        "(Table 1, Figure 3)", "(Figure 1)", "(Table 3)", "(Table 2)", "models of 8 to 32 billion parameters",
        "*Beyond the 80/20 Rule*, [arXiv:2506.01939](https://arxiv.org/abs/2506.01939)",
        # The table
        f"Of GRPO's tokens with positive covariance, 1% hold {held('positive, top 1%')}% of it and 5% hold "
        f"{held('positive, top 5%')}%. Of the negative ones, 1% hold {held('negative, top 1%')}% and 5% hold "
        f"{held('negative, top 5%')}%.",
        f"agrees with the paper only for the positive 1% ({threshold('positive ≥')}, "
        f"in the paper {threshold('positive (reported)')})",
        f"CW-GRPO's entropy is higher ({entropy(ours)} nats against {entropy(grpo)} after {job.STEPS})",
        f"CW-GRPO has {low} at a reward of {reward} (steps 901 to 1000), "
        f"and GRPO has {grpo_low} at {grpo_reward} (steps 201 to 300)",
        f"The batch scope keeps more entropy, {batch_low} at {batch_reward}, and so does the loss, {loss_low} at "
        f"{loss_reward}",
        f"None of the compared runs collapsed, neither in {job.STEPS} steps nor in {job.LONG_STEPS:,}",
        f"CW-GRPO's at the highest learning rate, from {validations[0]}% to {validations[-1]}%",
        f"CW-GRPO ends {above(grpo, ours)} points below GRPO after {job.STEPS} steps",
        f"It ends {report.gain(ours, start)[1:]} points above the starting model, which is no clear gain; GRPO gains "
        f"{report.gain(grpo, start)[1:]}",
        f"After {job.LONG_STEPS:,} steps, in one run, it has {final([ours_long])}%, GRPO {final([grpo_long])}%",
        # The search
        f"At 1e-4 CW-GRPO has {best('cw_grpo')}% and GRPO has {best('grpo')}%; the starting model has "
        f"{np.mean(report.starts(results, ('search',))) * 100:.1f}%. We tried nothing between 3e-5 and 1e-4",
        f"no form of CW-GRPO moves far from the starting model in {job.SEARCH_STEPS} steps",
        # Where updates point
        f"the gradient of a batch under CW-GRPO is {length} times as long as under GRPO, and the expected reward rises "
        f"along it {pointed('cw_grpo', 'slope')} times as fast",
        f"the reward still rises only {pointed('cw_grpo', 'slope_by_length')} times as fast",
        f"{share('weak_tokens')} of the tokens get a kernel below one half. These tokens hold {share('weak_squares')} "
        "of the sum of squared gradients",
        f"Take the {share('weak_tokens')} of tokens with the lowest probability: they hold {share('unlikely_squares')} "
        f"of that sum, and {share('weak_unlikely')} of the tokens with a low kernel are among them",
        f"On random tokens the same weights cost nothing ({pointed('cw_grpo_shuffled', 'slope')})",
        f"as its ratio grows ({slopes[0]} at 0.005, {slopes[1]} at 0.02)",
        # The ablation
        f"the same weights end at {final(shuffled)}% and {entropy(shuffled)} nats, like GRPO ({final(grpo)}%, "
        f"{entropy(grpo)}). That is {above(shuffled, ours)} points above the paper's weights",
        f"({batch} points, at the same learning rate), no centring ({uncentred}) and no normalisation ({unnormalised})",
        # What to watch
        f"(here {length} times, with {share('weak_tokens')} of the tokens down-weighted)",
    ]  # fmt: skip


def test_every_number_in_the_studys_readme_is_the_one_it_talks_about(study):
    """Also of a passage that is not listed above: write it there with the number that the results give."""
    text = (STUDY / "README.md").read_text("utf-8").split("## What came out")[1].split("## What it is not")[0]
    text = " ".join(text.split())
    passages = hand_written(study("report"))
    assert [passage for passage in passages if passage not in text] == []
    for passage in passages:
        text = text.replace(passage, "")
    assert re.findall(r"\S*\d\S*", text) == []


def drawing(svg: str) -> tuple[list[str], list[str], np.ndarray]:
    """What a figure shows, whichever matplotlib has drawn it: its texts, its shapes with their colours, and all their
    coordinates in per cent of the figure's width."""
    root = ElementTree.fromstring(svg, ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True)))
    texts, shapes, coordinates = [], [], []

    def visit(element):
        if element.get("id", "").startswith("text_"):  # letters are outlines; a comment says which
            texts.extend(comment.text.strip() for comment in element.iter(ElementTree.Comment))
            return
        if element.tag.endswith(("}path", "}use")):
            path, style = element.get("d", ""), element.get("style", "")
            place = path or f"{element.get('x')} {element.get('y')}"
            coordinates.extend(map(float, re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", place)))
            colours = re.findall(r"(?:fill|stroke|stroke-dasharray): [^;]+", style)
            shapes.append(" ".join([*re.findall(r"[A-Za-z]", path), *colours]))
        for child in element:
            visit(child)

    visit(root)
    width, height = (float(root.get(name).removesuffix("pt")) for name in ("width", "height"))
    return texts, shapes, np.array([width, height, *coordinates]) / width * 100


def assert_same_drawing(one: str, other: str) -> None:
    (texts, shapes, coordinates), (other_texts, other_shapes, other_coordinates) = drawing(one), drawing(other)
    assert texts == other_texts
    assert shapes == other_shapes
    np.testing.assert_allclose(coordinates, other_coordinates, rtol=0, atol=0.2)


@pytest.mark.parametrize(
    ("pattern", "changed"),
    [
        ("<!-- CW-GRPO, batch -->", "<!-- GRPO, batch -->"),
        (r"(stroke: )#(?!000000|b0b0b0)\w{6}", r"\g<1>#123456"),  # of a curve
        (r"(?s)(clip-path=.*?\nL )\d+", r"\g<1>1"),  # a point of a curve, by at least a few per cent
    ],
)
def test_two_figures_that_show_something_else_are_told_apart(pattern, changed):
    svg = (STUDY / "results" / "weights.svg").read_text("utf-8")
    assert_same_drawing(svg, svg.replace("Matplotlib v3.", "Matplotlib v4.").replace("DejaVuSans-", "Other-"))
    other = re.sub(pattern, changed, svg, count=1)
    assert other != svg
    with pytest.raises(AssertionError):
        assert_same_drawing(svg, other)


def test_what_is_written_is_what_the_results_give(study, tmp_path):
    """The page, its figures and the README's section, made anew from the committed results."""
    report = study("report")
    results, covariance = report.read_results(report.RESULTS), report.read_covariance(report.RESULTS)
    gradients = report.read_gradients(report.RESULTS)
    readme = report.README.read_text(encoding="utf-8")
    assert report.with_headline(readme, results, gradients) == readme
    report.write_page(tmp_path, results, covariance, gradients)
    committed = {path.name: path.read_text("utf-8") for path in report.RESULTS.iterdir() if path.suffix != ".parquet"}
    written = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert sorted(written) == sorted(committed)
    for name, text in written.items():
        if name.endswith(".svg"):
            assert_same_drawing(text, committed[name])
        else:
            assert text == committed[name]
