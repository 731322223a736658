"""The horizon study's plan: its problems, and what its stages decide, on made runs."""

import sys

import pandas as pd
import pytest
from interpreter import ROOT

sys.path.append(str(ROOT / "examples" / "study" / "pretrained"))
sys.path.append(str(ROOT / "examples" / "study" / "horizon"))
import arithmetic
import horizon


def test_no_problem_that_is_held_out_is_trained_on_nor_its_twin():
    every = arithmetic.problems()
    held_out, trained_on = horizon.held_out_and_trained(every)
    numbers = [row["question"].split() for row in held_out]
    assert [sign for _, sign, _ in numbers] == 50 * ["+"] + 50 * ["-"]
    asked = {(first, sign, second) for first, sign, second in numbers}
    twins = {(second, sign, first) for first, sign, second in asked if sign == "+"}
    assert len(asked) == 100 and len(twins - asked) > 40  # a sum of two equal numbers is its own twin
    assert {tuple(row["question"].split()) for row in trained_on} == {
        tuple(row["question"].split()) for row in every
    } - asked - twins


def test_guessing_is_the_chance_of_a_draw():
    """Half of the known sums have the answer 1, no difference has."""
    known = [arithmetic.problem(question, answer) for question, answer in [("1 + 0", 1), ("1 + 1", 2), ("3 - 1", 2)]]
    asked = [arithmetic.problem("0 + 1", 1), arithmetic.problem("2 - 1", 1)]
    assert arithmetic.guessed_apart(asked, known, 1, 2) == pytest.approx((0.75 + 0) / 2)
    assert arithmetic.guessed_apart(asked, known, 2, 2) == pytest.approx((0.25 + 0) / 2)


def write(folder, run, *pass_1: float) -> None:
    rows = [{"step": 0, "pass@1": 0.9, "right": [64]}]  # before training: counts for nothing
    rows += [
        {"step": 20 * place, "pass@1": value, "right": [round(64 * value)]} for place, value in enumerate(pass_1, 1)
    ]
    pd.DataFrame(rows).to_parquet(folder / f"{run.name}.parquet")


def test_the_rate_is_the_best_of_the_last_two_validations(tmp_path):
    of_rate = {"3e-6": (0.9, 0.1, 0.2), "1e-5": (0.0, 0.3, 0.3), "3e-5": (0.0, 0.1, 0.4)}
    for run in horizon.rate_runs():
        late = 0.3 if run.method == "cw_grpo" and run.lr == "3e-6" else 0.0
        write(tmp_path, run, *(value + late for value in of_rate[run.lr]))
    assert horizon.best_rates(tmp_path) == {"grpo": "1e-5", "cw_grpo": "3e-6"}
    runs = horizon.horizon_runs({"grpo": "1e-5", "cw_grpo": "3e-6"})
    assert len(runs) == len({(run.method, run.seed) for run in runs}) == 16
    assert {run.seed for run in runs}.isdisjoint(run.seed for run in horizon.rate_runs())
    assert {run.lr for run in horizon.collapse_runs({"grpo": "1e-5"})} == {"3e-5"}


def test_a_run_collapses_that_ends_ten_points_below_its_best(tmp_path):
    runs = horizon.horizon_runs({"grpo": "1e-5", "cw_grpo": "3e-6"})[:3]
    for run, ends in zip(runs, [(0.5, 0.39), (0.5, 0.41), (0.3, 0.5)], strict=True):
        write(tmp_path, run, *ends)
    assert horizon.collapses(tmp_path, runs) == 1
