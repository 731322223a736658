"""How methods differ, in numbers: over seeds, from what their runs have logged."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cw_plugin.lab.intervals import ALPHA, Difference, holm, over_seeds
from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.runs import ACCURACY, VALIDATION_REWARD

FIRST = 100  # steps that the gradient norm is of: after them, the policies have gone different ways
LAST = 10  # steps at least that reward and entropy are of; else the last quarter

OF_ACCURACY = "accuracy"
OF_REWARD = "reward"
OF_VALIDATION = "reward on validation"  # in its place, where not all runs have an accuracy
OF_GRADIENT_NORM = "gradient norm"
# The outcomes besides the accuracy, in the table's order -> their metric.
METRICS = {OF_REWARD: REWARD, "entropy": ENTROPY, OF_GRADIENT_NORM: NORM}


@dataclass(frozen=True)
class Outcome:
    """One quantity in which methods are compared; the gradient norm, by the logarithms of its means."""

    name: str  # such as "reward"
    where: str  # what it is a mean of: "steps 151 to 200", or "AIME24, AMC23, step 200" of an evaluation
    means: dict[str, pd.Series]  # method -> the mean of each run, by seed; nan if the run's last value is not finite
    differences: dict[str, Difference]  # to the reference, of methods whose runs all ended with finite values


@dataclass(frozen=True)
class Comparison:
    """The methods of a report and how they differ."""

    plain: Mapping[str, bool]  # method -> whether it is plain GRPO, in the page's order
    reference: str  # the method that the others are compared with; empty if there is none
    outcomes: list[Outcome]  # in the table's order
    significant: set[tuple[str, str]]  # (outcome's name, method) of each difference, corrected for all tests


def compare(metrics: pd.DataFrame, plain: Mapping[str, bool], scores: pd.DataFrame) -> Comparison:
    """Compare methods with the first one that is plain GRPO, else with the first one.

    Args:
        metrics: as :func:`.runs.all_metrics` returns them.
        plain: method -> whether it is plain GRPO, in the page's order.
        scores: of evaluations, from :func:`.scores.last_scores`. Where they do not compare another method with the
            first, the last validation that all runs have counts.
    """
    reference = next((name for name in plain if plain[name]), next(iter(plain), ""))
    outcomes = [*_accuracy(metrics, scores, reference), *_over_steps(metrics, reference)]
    p = {(outcome.name, method): each.p for outcome in outcomes for method, each in outcome.differences.items()}
    significant = {test for test, corrected in holm(p).items() if corrected < ALPHA}
    return Comparison(plain, reference, outcomes, significant)


def _accuracy(metrics: pd.DataFrame, scores: pd.DataFrame, reference: str) -> Iterator[Outcome]:
    """Of the evaluations, if they have the reference and another method, or if no run was validated.

    Else of the last step after 0 that was validated in every run.
    """
    logged = metrics[metrics.metric == ACCURACY]
    if len(scores) and (logged.empty or (scores.method.nunique() > 1 and reference in set(scores.method))):
        yield _outcome(OF_ACCURACY, scores.metric.iloc[0], scores, reference)
        return
    name = OF_ACCURACY
    if logged.empty:
        name, logged = OF_VALIDATION, metrics[metrics.metric == VALIDATION_REWARD]
    validated = logged[logged.step > 0].groupby("step").run.nunique()
    common = validated.index[validated == metrics.run.nunique()]
    if len(common):
        step = int(common.max())
        yield _outcome(name, f"step {step}", logged[logged.step == step], reference)


def _over_steps(metrics: pd.DataFrame, reference: str) -> Iterator[Outcome]:
    """Over steps that all runs share: reward and entropy at the end, the gradient norm at the beginning."""
    for name, metric in METRICS.items():
        logged = metrics[metrics.metric == metric]
        if logged.empty:
            continue
        first = min(logged.step.min(), 1)  # 0 for a logger that counts from there
        last = int(logged.groupby("run").step.max().min())
        if name == OF_GRADIENT_NORM:
            begin, end = first, min(last, FIRST)
        else:
            begin, end = max(last - max(last // 4, LAST) + 1, first), last
        where = f"steps {begin} to {end}" if end > begin else f"step {end}"
        within = logged[logged.step.between(begin, end)]
        yield _outcome(name, where, within, reference)


def _outcome(name: str, where: str, values: pd.DataFrame, reference: str) -> Outcome:
    """An outcome by rows of metrics, or of last_scores."""
    if name == OF_GRADIENT_NORM:
        values = values[~(values.value <= 0)]  # which have no logarithm; nan stays
        values = values.assign(value=np.log(values.value))
    of_runs = values.groupby(["method", "run", "seed"], sort=False, dropna=False).value.agg(_mean).droplevel("run")
    means = {str(method): runs.droplevel("method") for method, runs in of_runs.groupby(level="method", sort=False)}
    whole = {method: runs for method, runs in means.items() if runs.notna().all()}
    differences = {}
    if reference in whole:
        theirs = whole.pop(reference)
        differences = {method: over_seeds(ours, theirs) for method, ours in whole.items()}
    return Outcome(name, where, means, differences)


def _mean(values: pd.Series) -> float:
    """The mean of a run's finite values by step. It is nan if the last one is not finite: then the run has broken."""
    return math.nan if math.isnan(values.iloc[-1]) else float(values.mean())
