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


@pytest.mark.parametrize("width", [64, 128, 256])
def test_models_differ_in_width_alone(script, width):
    model = script("teach").untaught(width)
    assert model.num_parameters() == script("plan").parameters(width) and model.model.layers[0].self_attn.head_dim == 32
    for name, weight in load_file(STUDY / "model" / "model.safetensors").items():
        scaled = [n * width // 128 if n % 128 == 0 else n for n in weight.shape]
        assert list(model.state_dict()[name].shape) == scaled


def test_the_page_says_what_its_runs_say():
    page = RESULTS / "README.md"
    steps = pd.read_parquet(RESULTS / "metrics.parquet").astype({"accuracy": float, "reward": float, "lr": float})
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
