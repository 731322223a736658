"""The entropy study: how answers are drawn, and what its page makes of its runs."""

import numpy as np
import pandas as pd
import pytest
import torch
from interpreter import ROOT
from scipy import stats
from test_study import mean, table
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = ROOT / "examples" / "study" / "sizes" / "model-64"
RESULTS = ROOT / "examples" / "study" / "entropy" / "results"


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
        message = train.task.messages(problem)[0]
        prompt = tokenizer.apply_chat_template([message], add_generation_prompt=True)["input_ids"]
        for text, count in sorted(copies.items(), key=lambda item: -item[1])[:5]:
            written = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            with torch.no_grad():
                log_probs = model(torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            p = log_probs[range(len(written)), written].sum().exp().item()
            assert p > 0.02 and abs(count - answers * p) < 4.5 * (answers * p * (1 - p)) ** 0.5


def pass_at_1_and_16(run: pd.DataFrame) -> np.ndarray:
    """At each validation: the share of right answers, and how probably one of 16 drawn from the 64 is right."""
    right = np.array([*run.sort_values("step").right.dropna()])
    return np.stack([right.mean(1) / 64, 1 - stats.hypergeom(64, right, 16).pmf(0).mean(1)])


def where_reached(curve: np.ndarray, level: float) -> float:
    """pass@16 where pass@1 first reaches a level, between two validations."""
    after = int((curve[0] >= level).argmax())
    return float(np.interp(level, *curve[:, after - 1 : after + 1]))


def test_the_page_compares_at_equal_pass_1():
    """At its first setting: each seed at the highest pass@1 that both methods reach."""
    steps = pd.read_parquet(RESULTS / "metrics.parquet").query("width == 64 and updates == 2 and steps == 640")
    less = []
    for _, of_seed in steps.query("seed > 0").groupby("seed"):
        ours, theirs = (pass_at_1_and_16(of_seed[of_seed.method == method]) for method in ("cw_grpo", "grpo"))
        level = min(ours[0].max(), theirs[0].max())
        less.append(100 * (where_reached(ours, level) - where_reached(theirs, level)))
    shown = table(RESULTS / "README.md", "width 64, 2 updates, 640 steps")
    (column,) = (name for name in shown if "less GRPO: pass@16" in name)
    p = stats.ttest_1samp(less, 0).pvalue
    assert len(less) == 5 and shown.loc["CW-GRPO", column] == f"{mean(pd.Series(less), 1, '+')} (p {p:.3f})"
