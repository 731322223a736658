"""How a report compares methods: known metrics in, exact numbers out."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from synthetic_runs import ENTROPY, NORM, REWARD, a_run, differences, logged, write_answers, write_metrics

from cw_plugin.lab.reports import figures, notes
from cw_plugin.lab.reports.inputs import read_inputs
from cw_plugin.lab.reports.runs import SEED_OR_LENGTH, differing, read_run


def seeds_of_both(folder: Path, *seeds: int) -> list[Path]:
    return [
        a_run(folder / f"{weights}{seed}", weights, seed, 1.35 + seed / 20 - (0.3 + seed / 100) * (not weights),
              2 + seed / 10 if weights else 0.5, 0.58 + seed / 50 - (0 if weights else 0.1 - seed % 3 / 100))
        for weights in ("none", None) for seed in seeds
    ]  # fmt: skip


def of_two(folder: Path, grpo: dict[int, dict], cw: dict[int, dict]) -> tuple[dict[str, list[str]], str]:
    """The differences of two runs with these metrics."""
    runs = [logged(folder / "grpo", "none", grpo), logged(folder / "cw", None, cw)]
    return differences(*runs, out=folder / "out")


def test_differences_are_tested_over_seeds(tmp_path):
    rows, printed = differences(*seeds_of_both(tmp_path, 1, 2, 3), out=tmp_path / "out")
    least, most = stats.ttest_rel([0.51, 0.54, 0.54], [0.60, 0.62, 0.64]).confidence_interval()
    gap = f"-9.0 points [{100 * least:+.1f}, {100 * most:+.1f}]*"
    logs = np.log([2.1, 2.2, 2.3])
    low, high = np.exp(stats.ttest_rel(np.log([0.5] * 3), logs).confidence_interval())
    ratio = f"{0.5 / np.exp(logs.mean()):.3g} times [{low:.3g}, {high:.3g}]*"
    reward = rows.pop("Reward, steps 151 to 200")
    assert reward[:2] == ["1.450", "1.130"] and reward[2].startswith("-0.320 [") and reward[2].endswith("]*")
    assert rows == {
        "": ["GRPO", "CW-GRPO", "CW-GRPO less GRPO", "seeds"],
        "Accuracy, step 200": ["62.0%", "53.0%", gap, "3"],
        "Entropy, steps 151 to 200": ["0.100", "0.100", "+0.000", "3"],  # the same under all seeds
        "Gradient norm, steps 1 to 100": ["2.20", "0.500", ratio, "3"],
    }
    chance = f"This is more than chance (95% interval {-100 * most:.1f} to {-100 * least:.1f})."
    answer = f"CW-GRPO ended 9.0 points of accuracy below GRPO (step 200). {chance}"
    assert printed.startswith(answer) and answer in (tmp_path / "out" / "report.html").read_text()
    assert "corrected for all tests" in printed and notes.ONE_RUN not in printed and notes.ONE_ANSWER in printed
    assert "Accuracy on validation is that of" not in printed  # no run has another set


def test_each_difference_is_corrected_for_the_others(tmp_path):
    gains = (1.3, 2.0, 2.7)  # of rewards, and of the logarithm of norms
    assert stats.ttest_1samp(gains, 0).pvalue < 0.05 < 2 * stats.ttest_1samp(gains, 0).pvalue
    runs = [a_run(tmp_path / f"grpo-{seed}", "none", seed) for seed in (1, 2, 3)]
    runs += [a_run(tmp_path / f"cw-{seed}", None, seed, 1 + gain, math.exp(gain)) for seed, gain in enumerate(gains, 1)]
    rows, _ = differences(*runs)
    for name in ("Reward, steps 151 to 200", "Gradient norm, steps 1 to 100"):
        assert rows[name][2].endswith("]")  # without a star


@pytest.mark.parametrize(("seeds", "said"), [(1, {"ONE_RUN", "MORE_SEEDS"}), (4, {"MORE_SEEDS"}), (5, set())])
def test_few_seeds_are_said(seeds, said, tmp_path):
    rows, printed = differences(*seeds_of_both(tmp_path, *range(1, seeds + 1)))
    assert {name for name in ("ONE_RUN", "MORE_SEEDS", "ONE_KIND") if getattr(notes, name) in printed} == said
    assert ("One cannot tell whether this is chance" in printed) == (seeds == 1)
    has_interval = "[" in rows["Reward, steps 151 to 200"][2]
    assert has_interval == (seeds > 1)  # ten neighbouring steps once gave "-0.052 [-0.102, -0.001]: lower"


@pytest.mark.parametrize("weights", ["none", None])
def test_one_method_alone_shows_nothing_of_the_weights(weights, tmp_path):
    _, printed = differences(a_run(tmp_path / "run", weights))
    assert notes.ONE_KIND in printed and notes.TESTED not in printed and notes.ONE_ANSWER not in printed


def test_the_fewest_seeds_of_any_method_count(tmp_path):
    other = f"other={a_run(tmp_path / 'other', 'my:own', 1)}"
    rows, printed = differences(*seeds_of_both(tmp_path, *range(1, 6)), other)
    assert rows["Accuracy, step 200"][-1] == "5 and 1" and notes.ONE_RUN in printed
    _, printed = differences(*seeds_of_both(tmp_path, 1, 2)[1:])  # one of GRPO, two of CW-GRPO
    assert notes.ONE_RUN in printed


def test_a_name_that_another_method_shares_is_not_plain_grpo(tmp_path):
    kinds = [("X=", "none", 1, 2.5), ("X=", "ar", 2, 2.0), ("", "none", 1, 1.0), ("", "none", 2, 2.0)]
    runs = [f"{x}{logged(tmp_path / f'{x}{seed}', kind, {1: {REWARD: y}}, seed)}" for x, kind, seed, y in kinds]
    rows, printed = differences(*runs)
    assert rows[""] == ["X", "GRPO", "X less GRPO", "seeds"]
    assert printed.startswith("X ended 0.750 of reward above GRPO (step 1). This may be chance.")  # p is 0.5


def test_a_run_that_turns_nan_is_not_compared_by_its_good_half(tmp_path):
    good = {step: {REWARD: 1.0, NORM: 1.0, ENTROPY: 0.1} for step in range(1, 9)}
    good[3] = good[3] | {NORM: math.inf}  # a single overflow of float16 breaks nothing
    good[4] = good[4] | {NORM: 0.0}  # a step without advantages has no place in a geometric mean
    bad = {step: {REWARD: math.nan, NORM: math.nan, ENTROPY: 0.1} if step > 5 else good[1] for step in range(1, 9)}
    grpo = [logged(tmp_path / f"grpo-{seed}", "none", good, seed) for seed in (1, 2)]
    ours = [logged(tmp_path / f"cw-{seed}", None, steps, seed) for seed, steps in ((1, good), (2, bad))]
    rows, printed = differences(*grpo, *ours)
    assert rows["Reward, steps 1 to 8"] == ["1.000", "not finite", "", "2"]
    assert rows["Gradient norm, steps 1 to 8"] == ["1.00", "not finite", "", "2"]
    assert rows["Entropy, steps 1 to 8"] == ["0.100", "0.100", "+0.000", "2"] and len(rows) == 4
    assert notes.BROKEN in printed
    series = {"CW": [pd.Series([1.0, 2.0, math.nan], [1, 2, 3]), pd.Series([3.0, 4.0, 5.0], [1, 2, 3])]}
    (line,) = figures.curves(series, "Reward").axes[0].lines  # not one seed in place of two
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata().tolist() == [2.0, 3.0]


def test_nan_at_the_last_compared_step_breaks_a_run_and_not_after_it(tmp_path):
    short = {step: {REWARD: 1.0} for step in range(1, 9)}
    for first, cell in ((8, "not finite"), (9, "1.000")):
        long = {step: {REWARD: 1.0 if step < first else math.nan} for step in range(1, 13)}
        rows, _ = of_two(tmp_path, short, long)
        assert rows["Reward, steps 1 to 8"][:2] == ["1.000", cell]


def test_the_end_of_a_run_has_ten_steps_at_least_and_a_logger_may_count_from_0(tmp_path):
    for steps, end, mean in ((range(1, 25), "steps 15 to 24", "19.500"), (range(5), "steps 0 to 4", "2.000")):
        metrics = {step: {REWARD: float(step), NORM: 2.0**step} for step in steps}
        rows, _ = of_two(tmp_path, metrics, metrics)
        assert rows[f"Reward, {end}"][:2] == [mean, mean]
    assert rows["Gradient norm, steps 0 to 4"][:2] == ["4.00", "4.00"]


def test_runs_are_compared_over_the_steps_that_all_have(tmp_path):
    """And over the validation sets that each run has at a step, and a step that each has validated."""
    a, b = "val-core/a/acc/mean@1", "val-core/b/acc/mean@1"
    long = {step: {REWARD: step / 100} for step in range(201)}
    long[50] |= {a: 0.5, b: 0.3}
    long[90] |= {a: 0.9}  # b was not asked
    long[200] |= {a: 0.1, b: 0.1}
    short = {step: {REWARD: step / 100 + 0.25} for step in range(101)}
    short[50] |= {a: 0.6, b: 0.4}
    short[90] |= {a: 0.8}
    short[100] |= {a: 0.7, b: 0.7}
    long[0] = short[0] = {a: 0.2, b: 0.2}  # which no method has trained
    rows, _ = of_two(tmp_path, long, short)
    assert rows["Accuracy, step 50"] == ["40.0%", "50.0%", "+10.0 points", "1"]
    assert rows["Reward, steps 76 to 100"] == ["0.880", "1.130", "+0.250", "1"]
    rows, printed = of_two(tmp_path, long, {step: short[step] for step in short if step != 50})
    assert not any(row.startswith("Accuracy") for row in rows) and notes.NO_ACCURACY in printed


@pytest.mark.parametrize("measure", ["reward", "score"])
def test_a_validation_without_accuracy_is_compared_by_its_reward(tmp_path, measure):
    """As verl logs it for a reward that returns a number, and TRL for one without accuracy."""
    x, y = (f"val-core/{name}/{measure}/mean@1" for name in ("x", "y"))
    rows, printed = of_two(tmp_path, {1: {x: 0.7, y: 5.0}}, {1: {x: 0.9}})
    assert rows["Reward on validation, step 1"] == ["0.700", "0.900", "+0.200", "1"]
    assert "CW-GRPO ended 0.200 of reward on validation above GRPO (step 1). One cannot tell" in printed
    assert f"Validation is compared by its {measure} on val-core/x: not all runs have an accuracy (acc)." in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Reward on validation" in page and "Curves, except those of validation, are moving averages" in page
    beside = x.replace("core", "aux") if measure == "reward" else x  # where verl logs the reward, and TRL
    rows, _ = of_two(tmp_path, {1: {x: 0.7}}, {1: {beside: 0.9, "val-core/x/acc/mean@1": 0.5}})
    assert rows["Reward on validation, step 1"] == ["0.700", "0.900", "+0.200", "1"]
    assert not any(row.startswith("Accuracy") for row in rows)


def test_a_reward_that_verl_calls_accuracy_is_a_reward(tmp_path):
    """It does so with any reward function that returns a number."""
    acc = "val-core/x/acc/mean@1"
    for grpo, cells in ((-0.5, ["-0.500", "0.750", "+1.250", "1"]), (2.0, ["2.000", "0.750", "-1.250", "1"])):
        rows, _ = of_two(tmp_path, {1: {acc: grpo}}, {1: {acc: 0.75}})
        assert rows["Reward on validation, step 1"] == cells
        assert not any(row.startswith("Accuracy") for row in rows)


def test_accuracy_is_that_of_the_validation_sets_that_all_runs_have(tmp_path):
    """A was asked a hard set, too, which would make it look worse."""
    aime, math500 = "val-core/aime/acc/mean@1", "val-core/math/acc/mean@1"
    rows, printed = of_two(tmp_path, {1: {aime: 0.1, math500: 0.8}}, {1: {math500: 0.8}})
    assert rows["Accuracy, step 1"] == ["80.0%", "80.0%", "+0.0 points", "1"]
    assert "Accuracy on validation is that of val-core/math, which all runs have." in printed
    assert printed.startswith("CW-GRPO and GRPO ended with the same accuracy (step 1). One cannot tell")
    both = {1: {"val-core/other/reward/mean@1": 0.5, math500: 0.8}}  # whose reward function has no accuracy for one set
    assert "that of val-core/math, which" in of_two(tmp_path, both, both)[1]
    for other in ({aime: 0.8}, {REWARD: 0.8}):  # of another set, or not validated
        rows, printed = of_two(tmp_path, {1: {math500: 0.8}}, {1: other})
        assert not any(row.startswith("Accuracy") for row in rows) and notes.NO_ACCURACY in printed


@pytest.mark.parametrize("evaluated", [["grpo"], ["cw"], ["cw", "ar"]])
def test_validation_counts_where_the_reference_or_all_others_were_not_evaluated(tmp_path, evaluated):
    methods = {"grpo": "none", "cw": None, "ar": "ar"}
    runs = [a_run(tmp_path / name, weights, accuracy=0.5) for name, weights in methods.items()]
    for name in evaluated:
        write_answers(tmp_path / name / "evaluation", 200, tmp_path / name / "global_step_200", aime24=(9, 10))
    rows, _ = differences(*runs)
    assert rows["Accuracy, step 200"] == ["50.0%"] * 3 + ["+0.0 points"] * 2 + ["1"]


def test_runs_are_seeds_only_if_their_settings_show_it(tmp_path, monkeypatch):
    """OpenRLHF and ms-swift write no settings; then a run is called as its folder is."""
    unknown = [
        write_metrics(tmp_path / name, {1: {REWARD: 1.0}})
        for name in ("x/Qwen-1.5B-cw", "x/Qwen-1.5B-grpo", "y/Qwen-1.5B-cw")
    ]
    files = [write_metrics(tmp_path / "a", {1: {REWARD: 1.0}}, name) / name for name in ("metrics.jsonl", "grpo.jsonl")]
    known = [
        a_run(tmp_path / name, None, seed, lr=lr, steps=1)
        for name, seed, lr in (("1", 1, 1), ("2", 1, 2), ("3", 2, 2), ("4", 2, 1))
    ]
    known.append(write_metrics(tmp_path / "CW-GRPO", {1: {REWARD: 1.0}}))  # beside them, one without settings
    names = [run.name for run in read_inputs([*map(str, [*unknown, *files, *known])]).runs]
    of_folders = ["Qwen-1.5B-cw", "Qwen-1.5B-grpo", f"Qwen-1.5B-cw, {tmp_path}/y/Qwen-1.5B-cw", "a", "grpo"]
    of_settings = ["CW-GRPO", f"CW-GRPO, {tmp_path}/2"]
    assert names == [*of_folders, *of_settings, *of_settings[::-1], f"CW-GRPO, {tmp_path}/CW-GRPO"]
    monkeypatch.chdir(unknown[0])
    assert [read_run(place).name for place in (".", "metrics.jsonl")] == ["Qwen-1.5B-cw"] * 2


def test_seeds_may_differ_in_where_they_are_written_and_in_their_length():
    names = (  # of verl, TRL and SkyRL
        "data.seed seed trainer.seed trainer.default_local_dir trainer.experiment_name trainer.project_name output_dir "
        "run_name hub_model_id hydra.run.dir ray_kwargs.ray_init.num_cpus trainer.ckpt_path trainer.export_path "
        "trainer.log_path trainer.total_epochs trainer.save_freq trainer.ckpt_interval trainer.max_training_steps "
        "actor_rollout_ref.actor.optim.total_training_steps max_steps num_train_epochs"
    )
    configs = [dict.fromkeys(names.split(), number) | {"lr": number} for number in (1, 2)]
    assert differing(configs, SEED_OR_LENGTH) == ["lr"]


def test_answers_that_cannot_be_compared_are_said(tmp_path):
    for name, step in (("GRPO", 200), ("CW", 150)):
        write_answers(tmp_path / "evaluation" / f"{name}-global_step_{step}", step, aime24=(5, 10))
    (tmp_path / "evaluation" / "CW-global_step_150" / "amc23.yaml").write_text("evaluation: {step: 150}")
    printed = differences(tmp_path / "evaluation")[1]
    assert notes.NOT_ALL_ASKED in printed and "CW-global_step_150 is not finished on amc23: evaluate it" in printed
