"""The league of weightings, on made runs."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats


@pytest.fixture
def league(script):
    return script("league")


def made(league, name: str, of_rate: dict[str, float], rng) -> list[dict]:
    """Runs of a weighting whose accuracy is one number for each rate, and of which the worst rates look best later."""
    rows = [(lr, seed, value) for lr, value in of_rate.items() for seed in league.CHOICE_SEEDS]
    rows += [(lr, seed, 1 - value) for lr, value in of_rate.items() for seed in league.SEEDS]
    return [
        {"weights": name, "lr": lr, "seed": seed, "accuracy": value + rng.normal(0, 0.01), "entropy": 0.1}
        for lr, seed, value in rows
    ]


def test_each_weighting_is_compared_at_the_rate_that_other_seeds_chose(league):
    rng = np.random.default_rng(0)
    rows = made(league, "none", {"1e-5": 0.50, "3e-5": 0.55, "1e-4": 0.40}, rng)
    rows += made(league, "ar", {"1e-5": 0.40, "3e-5": 0.50, "1e-4": 0.60}, rng)
    rows += made(league, "stare", {"1e-5": 0.551, "3e-5": 0.50, "1e-4": 0.50}, rng)
    runs = pd.DataFrame(rows)
    table = league.league(runs, ["none", "ar", "stare"]).frame.set_index("weights")
    assert dict(table["its rate"]) == {"none": "3e-5", "ar": "1e-4", "stare": "1e-5"}

    def accuracy(name: str) -> pd.Series:
        return runs[(runs.weights == name) & (runs.lr == table["its rate"][name]) & (runs.seed > 100)].accuracy

    tests = {name: stats.ttest_ind(accuracy(name), accuracy("none"), equal_var=False) for name in ("ar", "stare")}
    difference = 100 * (accuracy("ar").mean() - accuracy("none").mean())
    assert table["less GRPO, points"]["ar"].startswith(f"{difference:+.1f} ±")
    p = 2 * tests["ar"].pvalue, tests["stare"].pvalue  # Holm: the smaller one counts twice
    assert p[0] < 0.001 < 0.01 < p[1]
    assert dict(table["p"][["ar", "stare"]]) == {"ar": "< 0.001", "stare": f"{p[1]:.3f}"}
    assert dict(table["different"][["ar", "stare"]]) == {"ar": "yes", "stare": "no"}


def test_a_weighting_without_all_its_runs_has_no_row(league):
    runs = pd.DataFrame(made(league, "none", {"3e-5": 0.5}, np.random.default_rng(0)))
    half = pd.concat([runs, runs[runs.seed < 110].assign(weights="ar")])
    assert list(league.league(half, ["none", "ar", "mine:focal"]).frame.weights) == ["none"]
    assert league.is_complete(half, "none")
    assert not league.is_complete(half, "ar") and not league.is_complete(half, "mine:focal")
