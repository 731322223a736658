"""The differences between methods, scores of checkpoints, and the settings in which runs or evaluations differ."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cw_plugin.reports.evaluations import BENCHMARKS, Answers
from cw_plugin.reports.formats import Table, listed
from cw_plugin.reports.intervals import Difference, holm, over_questions, over_seeds, pass_at_1
from cw_plugin.reports.runs import ENTROPY, NORM, REWARD
from cw_plugin.settings import differences

FIRST = 100  # steps that the gradient norm is of: after them, the policies have gone different ways
LAST = 10  # steps at least that reward and entropy are of; else the last quarter
ENOUGH = 5  # seeds; with fewer, the report asks for more
# Where a run is written, which says nothing of what it is; and what makes two runs seeds of one method.
_WRITTEN = ("*_dir", "trainer.experiment_name", "trainer.project_name", "*run_name", "ray_kwargs", "hydra", "hub_*",
            "trainer.export_path", "trainer.ckpt_path", "trainer.log_path")  # fmt: skip
SEED_OR_LENGTH = ("*seed", "trainer.total_*", "trainer.*_freq", "trainer.*_interval", "*.total_training_steps",
                  "*max_training_steps", "max_steps", "num_train_epochs")  # fmt: skip

Values = dict[str, pd.Series]  # method -> the mean of each run, by seed


def compare(metrics: pd.DataFrame, plain: Mapping[str, bool], scores: pd.DataFrame) -> tuple[Table, list[str]]:
    """The table of differences; and sentences: which are significant, which are not, and which runs to add.

    Args:
        metrics: as :func:`.runs.all_metrics` gives them.
        plain: method -> whether it is plain GRPO, in the page's order.
        scores: of evaluations, from :func:`last_scores`; without any, the last validation that all runs have counts.
    """
    reference = next(iter(sorted(plain, key=lambda name: not plain[name])), "")
    others = [name for name in plain if name != reference]
    rows = _rows(metrics, scores)
    found = {
        (word, name): over_seeds(values[name], values[reference])
        for word, (_, values) in rows.items()
        for name in others
        if name in values and reference in values
    }
    corrected = holm({key: difference.p for key, difference in found.items()})
    shown = {key for key, p in corrected.items() if p < 0.05}
    cells = [
        {"": title}
        | {name: _text(word, Difference(values[name].mean())) for name in plain if name in values}
        | {f"{name} less {reference}": _text(word, found[word, name], "+") + "*" * ((word, name) in shown)
           for name in others if (word, name) in found}
        | {"seeds": " and ".join(dict.fromkeys(str(len(values[name])) for name in plain if name in values))}
        for word, (title, values) in rows.items()
    ]  # fmt: skip
    notes = [
        "Brackets: 95% interval over seeds, by a t-test: paired if both methods have the same seeds, else Welch's.",
        f"* p < 0.05, corrected for {len(corrected)} tests (Holm); an interval alone is not corrected.",
    ] * bool(corrected)
    columns = ["", *plain, *(f"{name} less {reference}" for name in others), "seeds"]
    table = Table("comparison", "Differences between the methods", pd.DataFrame(cells, columns=columns), notes)
    return table, _sentences(metrics, plain, reference, found, shown)


def _rows(metrics: pd.DataFrame, scores: pd.DataFrame) -> dict[str, tuple[str, Values]]:
    """Accuracy; over steps that all runs share, reward and entropy at the end; the gradient norm at the beginning."""
    rows = {}
    accuracy = metrics[metrics.metric == "accuracy"]
    common = [step for step, values in accuracy.groupby("step") if step > 0 and len(values) == metrics.run.nunique()]
    if len(scores):
        rows["accuracy"] = f"Accuracy, {scores.metric.iloc[0]}", _by_seed(scores)
    elif common:
        rows["accuracy"] = f"Accuracy, step {common[-1]}", _by_seed(accuracy[accuracy.step == common[-1]])
    for word, metric in (("reward", REWARD), ("entropy", ENTROPY), ("gradient norm", NORM)):
        logged = metrics[metrics.metric == metric]
        if logged.empty:
            continue
        end = int(logged.groupby("run").step.max().min())
        begin = max(end - max(end // 4, LAST), 0)
        if metric == NORM:  # the mean is geometric
            begin, end = 0, min(end, FIRST)
            logged = logged[logged.value > 0].assign(value=lambda frame: np.log(frame.value))
        steps = f"steps {begin + 1} to {end}" if end > begin + 1 else f"step {end}"
        rows[word] = f"{word.capitalize()}, {steps}", _by_seed(logged[logged.step.between(begin + 1, end)])
    return rows


def _by_seed(values: pd.DataFrame) -> Values:
    means = values.groupby(["method", "run", "seed"], sort=False, dropna=False).value.mean().droplevel("run")
    return {name: values.droplevel("method") for name, values in means.groupby(level="method")}


def _text(word: str, found: Difference, sign: str = "") -> str:
    """A mean, or with a sign a difference and its interval."""

    def tell(value: float) -> str:
        if word == "gradient norm":  # of whose logarithm it is; three significant digits
            return f"{math.exp(value):#.3g}".rstrip(".")
        return f"{100 * value:{sign}.1f}" if word == "accuracy" else f"{value:{sign}.3f}"

    unit = {"accuracy": " points" if sign else "%", "gradient norm": " times" if sign else ""}.get(word, "")
    interval = "" if math.isnan(found.low) else f" [{tell(found.low)}, {tell(found.high)}]"
    return f"{tell(found.value)}{unit}{interval}"


def _sentences(
    metrics: pd.DataFrame, plain: Mapping[str, bool], reference: str,
    found: Mapping[tuple[str, str], Difference], shown: Collection[tuple[str, str]],
) -> list[str]:  # fmt: skip
    names = listed([*plain])
    if len(set(plain.values())) < 2:
        method, how = ("CW-GRPO", "with the weights") if plain.get(reference) else ("GRPO", "with kernel=none")
        here = f"Only {names} {'is' if len(plain) == 1 else 'are'}" if plain else "Nothing that was trained is"
        return [
            f"{here} here, so nothing shows whether the weights help.",
            f"Train {method} with the same seeds: the same command, another folder, {how}.",
        ]
    words = [word for word, name in found if (word, name) in shown]
    unclear = [word for word, name in found if (word, name) not in shown]
    runs = metrics.groupby("method").run.nunique().reindex(list(plain), fill_value=0).min()
    texts = []
    if len(plain) > 2:
        texts.append(f"{len(shown)} of {len(found)} differences to {reference} are significant; a star marks them.")
    elif shown:
        (other,) = {name for _, name in shown}
        sides = {"lower": [word for word in words if found[word, other].value < 0]}
        sides["higher"] = [word for word in words if word not in sides["lower"]]
        said = [f"{side} in {listed(sides[side])}" for side in sides if sides[side]]
        texts.append(f"{other} is {', and '.join(said)}.")
    if runs == 1:
        texts.append("One run does not tell methods apart: another seed may change the sign of each difference.")
    elif unclear and len(plain) == 2:
        texts.append(f"No difference in {listed(unclear)} is significant.")
    if 0 < runs < ENOUGH and unclear:
        free = [str(seed) for seed in range(1, 100) if seed not in set(metrics.seed)][:2]
        texts.append(f"Train {names} with more seeds, such as {free[0]} and {free[1]}.")
    return texts


def answers_frame(answers: Sequence[Answers]) -> pd.DataFrame:
    """A row for each question that a model was asked; step is -1 for a model without one, run the folder."""
    columns = ["method", "step", "run", "seed", "benchmark", "question", "acc", "samples"]
    rows = [
        (each.model, -1 if each.step is None else each.step, str(each.file.parent), each.seed,
         BENCHMARKS.get(each.benchmark, each.benchmark), question, acc, each.samples)
        for each in answers for question, acc in each.accuracy.items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def last_scores(answers: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each trained run at its method's last step, as rows of metrics; the metric is what was asked."""
    last = answers[(answers.step >= 0) & (answers.step == answers.groupby("method").step.transform("max"))]
    by_run = ["method", "run", "seed"]
    means = last.groupby([*by_run, "benchmark"], sort=False, dropna=False).acc.mean()
    means = means.groupby(by_run, sort=False, dropna=False).mean()
    return means.rename("value").reset_index().assign(metric=", ".join(_benchmarks(last)))


def scores(answers: pd.DataFrame, metrics: pd.DataFrame) -> list[Table]:
    """pass@1 of each checkpoint on each benchmark, the average, the difference to the model that was not trained (else
    to the first one at that step), and the policy's entropy. Without answers, no table."""
    if answers.empty:
        return []
    columns = _benchmarks(answers)
    base = [*answers.method[answers.step < 0], *answers.method][0]
    entropy = metrics[metrics.metric == ENTROPY].groupby(["method", "step"]).value.mean()
    base_scores, rows = {}, []
    order = answers.method.map([base, *answers.method].index)
    for (_, name, step), here in answers.groupby([order, "method", "step"]):
        ours = {each: asked.groupby("question").acc.mean() for each, asked in here.groupby("benchmark")}
        row = {"method": name, "step": str(step) if step >= 0 else None, "entropy": entropy.get((name, step))}
        row |= {each: _score(here[here.benchmark == each], ours[each]) for each in ours}
        if len(ours) == len(columns):
            row["average"] = f"{100 * sum(each.mean() for each in ours.values()) / len(columns):.1f}"
        if name == base:
            base_scores[step] = ours
        elif ours.keys() == (theirs := base_scores.get(step, base_scores[max(base_scores)])).keys():
            row[f"less {base}"] = _difference(ours, theirs)
        rows.append(row)
    header = ["method", "step", "entropy", *columns, "average", f"less {base}"]
    frame = pd.DataFrame(rows, columns=header).dropna(axis="columns", how="all")
    return [Table("table2", "Tables 2 and 3: zero-shot pass@1 of checkpoints", frame, [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ])]  # fmt: skip


def _benchmarks(answers: pd.DataFrame) -> list[str]:
    """Those that were asked; the paper's come first, in its order."""
    asked, papers = set(answers.benchmark), list(BENCHMARKS.values())
    return [*(name for name in papers if name in asked), *sorted(asked.difference(papers))]


def _score(asked: pd.DataFrame, means: pd.Series) -> str:
    mean, low, high = pass_at_1(means)
    right = round((asked.acc * asked.samples).sum())
    return f"{100 * mean:.1f} ({right} of {asked.samples.sum()}) [{100 * low:.1f}, {100 * high:.1f}]"


def _difference(ours: Mapping[str, pd.Series], theirs: Mapping[str, pd.Series]) -> str | None:
    found = over_questions(ours, theirs)
    interval = f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]" if found.low == found.low else ""
    return f"{100 * found.value:+.1f}{interval}{'*' * (found.p < 0.05)}" if found.value == found.value else None


def settings(name: str, title: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """Every setting in which the configurations of methods or models differ, under the host's own names; no table if
    there is none."""
    cells = [
        {"setting": key}
        | {method: ", ".join(dict.fromkeys(str(each.get(key, "-")) for each in configs[method])) for method in configs}
        for key in differing([config for several in configs.values() for config in several])
    ]
    return [Table(name, title, pd.DataFrame(cells))] if cells else []


def differing(configs: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> list[str]:
    """Keys of the settings in which configurations differ, besides where a run is written. Empty ones are left out."""
    first, *others = [config for config in configs if config] or [{}]
    return list(dict.fromkeys(key for each in others for key in differences(first, each, (*_WRITTEN, *ignored))))
