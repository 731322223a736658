"""The size study: its plan, the models before and after teaching, and what its page makes of runs."""

import numpy as np
import pandas as pd
import pytest
from interpreter import ROOT
from safetensors.torch import load_file
from scipy import stats
from test_study import mean, table

pytest.importorskip("trl")
STUDY = ROOT / "examples" / "study"
RESULTS = STUDY / "sizes" / "results"


@pytest.fixture
def steps():
    return pd.read_parquet(RESULTS / "metrics.parquet").astype({"accuracy": float, "reward": float})


@pytest.mark.parametrize("width", [64, 128, 256])
def test_models_differ_in_width_alone(script, width):
    model = script("teach").untaught(width)
    assert model.num_parameters() == script("plan").parameters(width) and model.model.layers[0].self_attn.head_dim == 32
    for name, weight in load_file(STUDY / "model" / "model.safetensors").items():
        scaled = [n * width // 128 if n % 128 == 0 else n for n in weight.shape]
        assert list(model.state_dict()[name].shape) == scaled


def test_the_page_says_what_its_runs_say(steps):
    page, line = RESULTS / "README.md", steps[np.isclose(steps.lr.astype(float) * steps.width, 3e-5 * 128)]
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


def test_the_answer_is_by_the_rule(script, steps):
    page = script("page")
    every = page.pairs(steps[(steps.width < 512) | (steps.seed < 3) | (steps.method == "grpo")])
    assert len(every) == 22  # 24 without those two of width 512 whose other run is not there
    line = page.pairs(steps).query("abs(lr * width - 3e-5 * 128) < 1e-9")
    assert page.answer(line) == "With size, the difference moves in favour of GRPO."
    assert page.answer(line.assign(accuracy=-line.accuracy)).endswith("in favour of CW-GRPO.")
    assert "moves by less than 2 points" in page.answer(line.assign(accuracy=line.seed - 3.0))
    assert page.answer(line.assign(accuracy=9 * line.seed)).startswith("No answer")
    assert page.answer(line[line.seed < 3]).startswith("Unfinished")
    line.loc[line.width == 64, "GRPO"], line.loc[line.width != 64, "accuracy"] = 46.5, -5.0
    assert "without the sizes at which GRPO gains less than 1 point" in page.answer(line)
