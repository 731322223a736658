"""Scores of checkpoints: known answers in, exact numbers out."""

import re
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from graded_answers import answered
from scipy import stats
from synthetic_runs import ENTROPY, a_run, differences, report_of, rows_of, scores, write, write_answers, write_metrics

from cw_plugin.lab.evaluation.graded_answers import Answers
from cw_plugin.lab.evaluation.scores import (
    answers_frame,
    checkpoints,
    guessed,
    last_scores,
    levels,
    pass_at,
    solved_by,
    tries,
)  # fmt: skip
from cw_plugin.lab.reports.tables import scores_table


def cells(table: pd.DataFrame, *columns: str) -> list[tuple[str, ...]]:
    """Columns of a table, a tuple for each row, numbers without their intervals."""
    shown = table[list(columns)].map(lambda cell: cell.partition(" ")[0])
    shown["method"] = table["method"]
    return list(shown.itertuples(index=False, name=None))


def test_checkpoints_are_compared_with_the_model_before_training(tmp_path):
    """Without it with the first, at the same step, else with its last."""
    for method, of_steps in {"GRPO": {50: 2, 100: 5, 150: 6}, "CW-GRPO": {50: 4, 100: 8}}.items():
        for step, right in of_steps.items():
            write_answers(tmp_path / "trained" / f"{method}-global_step_{step}", step, aime24=(right, 10))
    table = scores(tmp_path / "trained")
    assert cells(table, "method", "step", "less CW-GRPO") == [
        ("CW-GRPO", "50", ""), ("CW-GRPO", "100", ""),
        ("GRPO", "50", "-20.0"), ("GRPO", "100", "-30.0"), ("GRPO", "150", "-20.0"),  # 6 of 10 less 8 of 10 at 100
    ]  # fmt: skip
    write_answers(tmp_path / "base", None, aime24=(1, 10))
    table = scores(tmp_path / "trained", tmp_path / "base", out=tmp_path / "out")
    assert [cell.partition(" ")[0] for cell in table["less base"]] == ["", "+30.0", "+70.0", "+10.0", "+40.0", "+50.0"]
    significant = [cell.endswith("*") for cell in table["less base"]]
    assert significant == [False, False, True, False, False, False]  # p = 2 / 2^7; else 2 / 2^5 and more
    rows = {row[0]: row[1:] for row in rows_of(tmp_path / "out" / "comparison.csv")}
    assert rows["Accuracy, AIME24, step 100"] == ["80.0%", "50.0%", "+30.0 points", "1"]  # the last that both have


def asked(method: str, seed: int, step: int, **accuracy: float) -> list[Answers]:
    """A run's answers to ten questions of each benchmark, with this accuracy."""
    folder = Path(f"{method}-{seed}-{step}")
    grades = {name: {str(i): [float(i < 10 * share)] for i in range(10)} for name, share in accuracy.items()}
    return [
        Answers(method, step, name, of_name, file=folder / f"{name}.jsonl", seed=seed)
        for name, of_name in grades.items()
    ]


def test_accuracy_is_that_of_what_all_runs_were_asked():
    """Of the last step and of the benchmarks that all have: a missing one would count as a difference."""
    early = [answer for method in ("GRPO", "CW") for answer in asked(method, 1, 50, aime24=0.1, math500=0.5)]
    grpo = [*asked("GRPO", 1, 100, aime24=0.2, math500=0.8), *asked("GRPO", 2, 100, aime24=0.2, math500=0.8)]
    cw = [*asked("CW", 1, 100, aime24=0.2, math500=0.8), *asked("CW", 2, 100, math500=0.7)]
    later = asked("GRPO", 1, 150, aime24=1.0, math500=1.0)

    def compared(*answers: Answers) -> tuple[set[str], list[float]]:
        found = last_scores(answers_frame(answers))
        return set(found.metric), sorted(found.value)

    assert compared(*early, *grpo, *cw, *later) == ({"MATH-500, step 100"}, [0.7, 0.8, 0.8, 0.8])
    assert compared(*early, *grpo, *later) == ({"AIME24, MATH-500, step 50"}, [0.3, 0.3])
    assert compared(*grpo, *asked("CW", 1, 50, math500=1.0)) == (set(), [])
    assert compared(*asked("GRPO", 1, 9, aime24=0.5), *asked("CW", 1, 9, math500=0.5)) == (set(), [])
    frame = answers_frame([*asked("GRPO", 1, 9, aime24=0.5, math500=0.7), *asked("CW", 1, 9, aime24=0.5)])
    assert [(each.average, each.differences) for each in checkpoints(frame, ["GRPO"])] == [(0.6, {}), (None, {})]


def trl_run(folder: Path) -> Path:
    write(folder / "training_args.json", '{"cw_weights": "none"}')
    return write_metrics(folder, {100: {ENTROPY: 0.25}, 200: {ENTROPY: 0.5}})


def test_a_checkpoint_of_trl_has_the_step_in_its_folders_name(tmp_path):
    run = trl_run(tmp_path / "trl=grpo")
    for name, right in {"checkpoint-100": 2, "global_step200": 6, "merged": 9, "untrained": 1}.items():  # of OpenRLHF
        place = tmp_path / name if name == "untrained" else run / name
        write_answers(tmp_path / "evaluation" / name, None, place, aime24=(right, 10))
    table = scores(run, tmp_path / "evaluation")
    assert cells(table, "method", "step", "entropy", "AIME24", "less untrained") == [
        ("untrained", "", "", "10.0", ""),  # not "merged", which is of the run
        ("GRPO", "100", "0.25", "20.0", "+10.0"), ("GRPO", "200", "0.5", "60.0", "+50.0"),
        ("GRPO, merged", "", "", "90.0", "+80.0"),
    ]  # fmt: skip
    table = scores(run / "metrics.jsonl", tmp_path / "evaluation")
    assert list(table.step) == ["", "100", "200", ""]
    write_answers(run / "evaluation" / "merged", None, run / "merged", amc23=(3, 40))  # within the run's folder
    table = scores(run, tmp_path / "evaluation")
    assert set(table.method) == {"GRPO", "GRPO, merged", "untrained"}


def test_a_model_in_a_runs_own_folder_is_that_of_its_last_step(tmp_path):
    """TRL saves it there. It counts once, also if the checkpoint of the last step was asked too."""
    run = trl_run(tmp_path / "grpo")
    write_answers(tmp_path / "evaluation" / "grpo", None, run, aime24=(6, 10))
    write_answers(tmp_path / "evaluation" / "base", None, tmp_path / "base", aime24=(1, 10))
    table = scores(run, tmp_path / "evaluation")
    found = cells(table, "method", "step", "entropy", "AIME24", "less base")
    assert found == [("base", "", "", "10.0", ""), ("GRPO", "200", "0.5", "60.0", "+50.0")]
    seed = write_metrics(trl_run(tmp_path / "seed"), {200: {ENTROPY: 1.0}})
    assert list(scores(run, seed, tmp_path / "evaluation").entropy) == ["", "0.75"]  # the mean of both
    write_answers(tmp_path / "evaluation" / "again", None, run / "checkpoint-200", aime24=(6, 10))
    rows, _ = differences(run, tmp_path / "evaluation")
    assert rows["Accuracy, AIME24, step 200"] == ["60.0%", "1"]


def test_a_checkpoint_is_of_the_nearest_run_that_holds_it(tmp_path):
    outer = a_run(tmp_path / "outer", "none", steps=12)
    write_metrics(tmp_path / "outer", {})  # whose metrics would else be two runs'
    inner = a_run(tmp_path / "outer" / "inner", None, steps=12)
    write_answers(tmp_path / "evaluation" / "x", 12, inner / "global_step_12", aime24=(6, 10))
    table = scores(f"OUTER={outer}", f"INNER={inner}", tmp_path / "evaluation")
    assert cells(table, "method", "step") == [("INNER", "12")]


def test_a_checkpoint_beside_two_runs_is_of_neither(tmp_path):
    for name in "AB":
        write_metrics(tmp_path, {12: {ENTROPY: 1.0}}, f"{name}.jsonl")
    write_answers(tmp_path / "evaluation" / "x", 12, tmp_path / "global_step_12", aime24=(6, 10))
    table = scores(tmp_path / "A.jsonl", tmp_path / "B.jsonl", tmp_path / "evaluation")
    assert cells(table, "method", "step") == [("x", "12")]


def test_a_checkpoint_that_was_evaluated_twice_is_one_run(tmp_path):
    for method, right in (("GRPO", 3), ("CW-GRPO", 8)):
        place = tmp_path / method / "global_step_9"
        for folder in ("first", "second"):
            write_answers(tmp_path / folder / f"{method}-global_step_9", 9, place, aime24=(right, 10))
    rows, _ = differences(tmp_path / "first", tmp_path / "second")
    assert rows["Accuracy, AIME24, step 9"] == ["80.0%", "30.0%", "+50.0 points", "1"]
    for weights, runs in ("a1", 1), ("b2", 2):  # the second is trained anew in the same place
        settings = [{"evaluation.checkpoint": "run/model", "evaluation.weights": which} for which in ("a1", weights)]
        twice = [Answers("GRPO", 9, "x", {"q": [1.0]}, of, Path(f"{i}/x.jsonl")) for i, of in enumerate(settings)]
        assert answers_frame(twice).run.nunique() == runs


def test_models_that_share_no_question_are_not_compared():
    asked_apart = [Answers(name, None, "x", {name: [1.0]}, file=Path(name, "x.jsonl")) for name in ("a", "b")]
    frame = scores_table(answers_frame(asked_apart), "a", {}).frame
    assert list(frame.method) == ["a", "b"] and "less a" not in frame


def test_models_without_a_step_keep_their_names_beside_others(tmp_path):
    for name, right in (("Qwen", 3), ("tuned", 8)):
        write_answers(tmp_path / "evaluation" / name, None, aime24=(right, 10))
    write_answers(tmp_path / "one" / "tuned", None, aime24=(8, 10))
    write_answers(tmp_path / "evaluation" / "run-global_step_9", 9, aime24=(5, 10))
    table = scores(f"X={tmp_path / 'evaluation'}", f"Y={tmp_path / 'one'}")
    assert set(cells(table, "method", "AIME24")) == {("Qwen", "30.0"), ("tuned", "80.0"), ("X", "50.0"), ("Y", "80.0")}
    write_answers(tmp_path / "evaluation" / "another-global_step_9", 9, aime24=(7, 10))
    table = scores(f"X={tmp_path / 'evaluation'}")
    assert set(table.method) == {"Qwen", "tuned", "run", "another"}


def test_pass_at_k_is_shown_where_questions_were_asked_several_times(tmp_path):
    right = {"base": [0, 1, 4, 8, 0, 2], "GRPO-global_step_9": [0, 0, 8, 8, 8, 0], "CW-GRPO-global_step_9": [1] * 6}
    for model, of_questions in right.items():
        grades_of = [[1] * n + [0] * (8 - n) for n in of_questions]
        step = 9 if "step" in model else None
        answered(tmp_path / "evaluation" / model, "amc23", grades_of, step, checkpoint="a/model")
    out, _ = report_of(tmp_path / "evaluation")
    header, *rows = rows_of(out / "pass-at-k.csv")
    assert header == ["method", "step", "k", "AMC23", "average", "less base", "less GRPO"]
    assert [row[:3] for row in rows[:3]] == [["base", "", "1"], ["CW-GRPO", "9", "1"], ["GRPO", "9", "1"]]
    found = {(row[0], int(row[2])): row[3:] for row in rows}
    assert {k for _, k in found} == {1, 4, 8}

    def by_hand(model: str, k: int) -> pd.Series:
        return pd.Series([1 - stats.hypergeom(8, n, k).pmf(0) for n in right[model]])

    assert found["base", 4][0].startswith(f"{100 * by_hand('base', 4).mean():.1f} [")
    assert found["base", 4][2:] == ["", ""]  # with which the trained models are compared
    d = by_hand("CW-GRPO-global_step_9", 4) - by_hand("GRPO-global_step_9", 4)
    interval = stats.ttest_1samp(d, 0).confidence_interval()
    assert found["CW-GRPO", 4][3] == f"{100 * d.mean():+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
    out, _ = report_of(*(tmp_path / "evaluation" / f"{method}-global_step_9" for method in ("GRPO", "CW-GRPO")))
    assert rows_of(out / "pass-at-k.csv")[0][5:] == ["less GRPO"]  # which is base and reference, once


def test_k_is_each_power_of_four_and_the_number_of_answers():
    found = {n: tries(answers_frame([Answers("base", None, "x", {"q": n * [1.0]})])) for n in (1, 2, 5, 16, 20)}
    assert found == {1: [], 2: [1, 2], 5: [1, 4, 5], 16: [1, 4, 16], 20: [1, 4, 16, 20]}
    assert tries(answers_frame([Answers("base", None, "x", {"q": [1.0, 0.5]})])) == []  # half an answer is not right


def test_pass_at_k_is_of_those_who_were_asked_often_enough():
    many = {"a": [1.0] + 8 * [0.0], "b": 8 * [0.0]}
    few = {"a": 4 * [1.0], "b": [1.0, 1.0]}
    answers = answers_frame([Answers(name, None, "x", grades) for name, grades in (("many", many), ("few", few))])
    assert tries(answers) == [1, 4, 8]  # not 9, which one question alone allows
    found = [(each.method, k) for k in (1, 4, 8) for each in checkpoints(answers, [], pass_at(k))]
    assert found == [("many", 1), ("few", 1), ("many", 4), ("many", 8)]
    counts = [(each.scores["x"].right, each.scores["x"].answers) for each in checkpoints(answers, [])]
    assert counts == [(1, 17), (6, 6)]
    (of_100,) = checkpoints(answers_frame([Answers("x", None, "x", {"q": 29 * [1.0] + 71 * [0.0]})]), [], pass_at(1))
    assert of_100.average == pytest.approx(0.29)  # 29 / 100 * 100 is less than 29


def test_of_more_answers_than_n_those_that_count_are_drawn():
    grades = [1.0, 1.0] + 3 * [0.0]
    frame = answers_frame([Answers("x", None, "x", {"a": grades, "b": 4 * [0.0]})])
    for least in (1, 2):
        (found,) = checkpoints(frame, [], solved_by(least, 4))
        solved = [sum(drawn) >= least for drawn in combinations(grades, 4)]
        assert found.average == pytest.approx(sum(solved) / len(solved) / 2)


@pytest.mark.parametrize(
    ("right", "truths"),
    [([0, 0, 0], ["x", "y", "z"]), ([1, 1, 0], [None, None, None])],  # no guess is right; none is known to be
)
def test_nothing_is_said_of_guesses_that_solve_nothing(right, truths, tmp_path):
    grades = [[1] * n + [0] * (4 - n) for n in right]
    answered(tmp_path / "base", "formulas", grades, ground_truths=truths)
    out, printed = report_of(tmp_path)
    assert (out / "solved.csv").exists() and "guesses" not in printed


def test_how_far_guessing_gets():
    """Guesses at five letters, at numbers to 999, at formulas that differ, and at a single question."""
    letters, numbers = list("ABCDE") * 20, [str(number) for number in range(0, 1000, 37)]
    fifth = stats.binom(64, 19 / 99)
    assert guessed(letters, 64) == pytest.approx(1 - fifth.pmf(0))
    assert guessed(letters, 64, least=32) == pytest.approx(1 - sum(fifth.pmf(right) for right in range(32)))
    assert guessed(numbers, 64) == pytest.approx(1 - (1 - 1 / 1000) ** 64)  # 0 to 999, as in AIME
    assert guessed(["-3", "+6"], 1) == pytest.approx(1 / 10)
    assert guessed([" 7", "7 ", "x"], 1) == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert guessed(["x", "y", r"\frac{1}{2}"], 64) == guessed(["7"], 64) == 0


def test_questions_are_counted_that_many_answers_solve(tmp_path):
    """At least 1, 2 and 8 of 16, and a note where guesses would do as much."""
    assert [levels(most) for most in (0, 1, 5, 20)] == [[], [1], [1, 3], [1, 3, 10]]  # an eighth and a half, rounded up
    right = {"base": [0, 1, 2, 16], "GRPO-global_step_9": [8, 8, 7, 2], "CW-GRPO-global_step_9": [16, 16, 16, 16]}
    letters, numbers = ["A", "A", "B", "C"], ["3", "400", "999", "8"]
    for model, of_questions in right.items():
        grades = [[1] * n + [0] * (16 - n) for n in of_questions]
        for benchmark, truths in {"choice": letters, "numbers": numbers}.items():
            step = 9 if "step" in model else None
            folder = tmp_path / "evaluation" / model
            answered(folder, benchmark, grades, step, checkpoint="a/model", ground_truths=truths)
    out, _ = report_of(tmp_path / "evaluation")
    header, *rows = rows_of(out / "solved.csv")
    assert header == ["method", "step", "at least", "choice", "numbers", "average", "less base", "less GRPO"]
    share = {(row[0], row[2]): [cell.partition(" ")[0] for cell in row[3:6]] for row in rows if row[0] != "CW-GRPO"}
    assert share == {
        ("base", "1 of 16"): ["75.0"] * 3, ("GRPO", "1 of 16"): ["100.0"] * 3,
        ("base", "2 of 16"): ["50.0"] * 3, ("GRPO", "2 of 16"): ["100.0"] * 3,
        ("base", "8 of 16"): ["25.0"] * 3, ("GRPO", "8 of 16"): ["50.0"] * 3,
    }  # fmt: skip
    chance = stats.binom(16, 1 / 3)  # of two questions, one of the three others has the same letter
    expected = [f"{100 * chance.sf(least - 1) / 2:.1f}%" for least in (1, 2, 8)]  # which only the base does not double
    page = (out / "report.html").read_text().splitlines()
    (note,) = [line for line in page if line.startswith('<p class="quiet">choice: 16 guesses')]
    assert re.findall(r"[\d.]+%", note) == expected
