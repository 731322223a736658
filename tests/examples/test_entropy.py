"""The entropy study: how answers are drawn, which settings and rates its rules pick, what its page makes of runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from interpreter import ROOT
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = ROOT / "examples" / "study" / "sizes" / "model-64"


def test_answers_are_drawn_as_often_as_the_model_gives_them(script):
    """Their probabilities are those of whole texts, each in one pass without a cache."""
    pytest.importorskip("trl")
    train = script("train")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL)
    problems, answers = train.task.split_problems()["test"][:2], 4000
    torch.manual_seed(0)
    drawn = list(train.sampled(model.eval(), tokenizer, problems, answers, 24))
    for place, problem in enumerate(problems):
        copies = {text: count for at, text, count in drawn if at == place}
        assert sum(count for at, _, count in drawn if at == place) == answers
        prompt = tokenizer.apply_chat_template([train.task.messages(problem)[0]], add_generation_prompt=True)[
            "input_ids"
        ]
        for text, count in sorted(copies.items(), key=lambda item: -item[1])[:5]:
            written = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            with torch.no_grad():
                log_probs = model(torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            p = log_probs[range(len(written)), written].sum().exp().item()
            assert p > 0.02 and abs(count - answers * p) < 4.5 * (answers * p * (1 - p)) ** 0.5


def planted(run, pass_1, solved=256, entropy=(0.1, 0.05)):
    """Rows of a run whose pass@1 and entropy move in straight lines; ``solved`` problems have a right answer at its
    end, and all at its start."""
    rows = []
    for step in range(run.steps + 1):
        share = step / run.steps
        row = {"step": step, "entropy": entropy[0] + share * (entropy[1] - entropy[0])} if step else {"step": 0}
        if step in run.validations:
            asked = 256 - round(share * (256 - solved))
            right = (pass_1[0] + share * (pass_1[1] - pass_1[0])) * 64 * 256 / asked
            row["right"] = [round(right)] * asked + [0] * (256 - asked)
            row["accuracy"] = sum(row["right"]) / 64 / 256
        rows.append(row)
    rows[-1]["seconds"] = run.steps
    return rows


@pytest.fixture
def searched(script, tmp_path):
    """The file of a search in which GRPO loses problems with many updates at its best rate; entropy, at width 128; and
    at the third setting accuracy as well."""
    plan, phases, file = script("plan"), script("phases"), tmp_path / "metrics.parquet"
    for run in phases.search():
        best = run.lr == "1e-4"
        if run.updates == 8:
            plan.add(file, run, planted(run, (0.4, 0.6 + 0.1 * best), 200 if best else 256))
        elif run.width == 128:
            plan.add(file, run, planted(run, (0.4, 0.6 + 0.1 * best), entropy=(0.1, 0.0 if best else 0.1)))
        else:
            plan.add(file, run, planted(run, (0.4, 0.1), 100))
    return file


def test_the_settings_are_where_grpo_collapses_at_its_best_rate(script, searched):
    phases = script("phases")
    points = list(phases.points(phases.read(searched)))
    assert [(point.updates, point.width) for point in points] == [(8, 64), (2, 64), (2, 128)]
    assert points[0].steps == 300  # problems are lost until the end
    assert points[1] == phases.CENTRE
    assert points[2].steps == 500  # entropy is a straight line, and a mean of 25 steps: below a tenth at the end alone
    waiting = phases.phases(searched)
    assert not [run for run in next(waiting) if run not in script("plan").finished(searched)]
    rates = next(waiting)
    assert len(rates) == 18 and "grpo" not in {run.method for run in rates}  # its search is the beginning of the first
    assert {(run.steps, run.updates, run.seed, run.held_out) for run in rates} == {(300, 8, 0, "tune")}


def test_each_method_has_five_seeds_at_its_best_rate(script, searched):
    plan, phases = script("plan"), script("phases")
    waiting = phases.phases(searched)
    next(waiting)
    for run in next(waiting):
        best = run.lr == ("5e-5" if run.method == "cw_grpo" else "2e-4")
        plan.add(searched, run, planted(run, (0.4, 0.6 if best else 0.5)))
    seeds = [next(waiting) for _ in range(5)]
    assert [{run.seed for run in runs} for runs in seeds] == [{1}, {2}, {3}, {4}, {5}]
    rate = {"grpo": "1e-4", "cw_grpo": "5e-5"}
    for run in seeds[0]:
        assert run.lr == rate.get(run.method, "2e-4") and run.held_out == "test" and run.steps == 300


def test_the_page_compares_at_equal_pass_1(script, searched, tmp_path):
    plan, phases, curves = script("plan"), script("phases"), script("curves")
    point = next(iter(phases.points(phases.read(searched))))
    for seed in range(1, 6):
        for method, high, solved in (("grpo", 0.7, 200 - seed), ("cw_grpo", 0.6, 256)):
            run = replace(point, method=method, lr="1e-4", seed=seed)
            plan.add(searched, run, planted(run, (0.4, high + seed / 100), solved))
    curves.main(tmp_path)
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "CW-GRPO keeps more pass@16 at equal pass@1" in page and "in 5 pairs" in page
    steps = phases.read(searched)
    runs = curves.compared(steps, point)
    assert curves.have_collapsed(runs["grpo"]) and not curves.have_collapsed(runs["cw_grpo"])
    less = curves.less_at_equal_pass_1(runs["cw_grpo"], runs["grpo"])
    by_hand = []
    for seed in range(1, 6):
        level = curves.validated(runs["cw_grpo"][seed])["pass@1"].max()
        values = []
        for method in ("cw_grpo", "grpo"):
            rows = runs[method][seed].dropna(subset="accuracy")
            pass_1 = [np.mean(right) / 64 for right in rows.right]
            pass_16 = [1 - stats.hypergeom(64, right, 16).pmf(0).mean() for right in rows.right]
            values.append(np.interp(level, pass_1, pass_16))  # they rise all the way
        by_hand.append(values[0] - values[1])
    np.testing.assert_allclose(less["pass@16"], by_hand, atol=1e-9)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"curve.svg", "entropy.svg"}


@pytest.mark.parametrize(
    "differences, said",
    [
        ((3, 4, 3, 4, 3), "CW-GRPO keeps more"), ((-3, -4, -3, -4, -3), "GRPO keeps more"), ((3, 4), "Unfinished"),
        ((0.1, -0.1, 0.2, 0, 0.1), "No difference of more than 1 point"), ((3, -4, 3, -4, 3), "No answer:"),
    ],
)  # fmt: skip
def test_the_reading_is_the_plans(script, monkeypatch, differences, said):
    curves = script("curves")
    less = pd.DataFrame({"pass@16": np.array(differences) / 100})
    monkeypatch.setattr(curves, "less_at_equal_pass_1", lambda *_: less)
    monkeypatch.setattr(curves, "have_collapsed", lambda runs: True)
    assert curves.answer({"grpo": {}, "cw_grpo": {}}).startswith(said)
