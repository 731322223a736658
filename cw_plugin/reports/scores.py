"""Scores of checkpoints on benchmarks, in numbers: pass@k over questions, from what ``cw-grpo evaluate`` has graded."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from cw_plugin.data.sources import BENCHMARKS, SOURCES
from cw_plugin.evaluation.answers import Answers
from cw_plugin.reports.intervals import Difference, mean_over_questions, over_questions, pass_at_k
from cw_plugin.reports.runs import ENTROPY

UNTRAINED = -1  # the step of a model that is no checkpoint

ByQuestion = dict[str, pd.Series]  # benchmark -> the score of each question, by question


@dataclass(frozen=True)
class Score:
    """pass@k on one benchmark with its 95% interval, and how many of how many answers were right."""

    mean: float
    low: float
    high: float
    right: int
    answers: int


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint scores; all its seeds together.

    Attributes:
        step: None for a model that was not trained.
        entropy: of the policy at this step; nan if it is not known.
        scores: benchmark -> pass@k; without those of which a question was asked fewer than k times.
        average: over the benchmarks; None if one is missing.
        differences: other model -> the difference to it, for models with the same benchmarks.
    """

    method: str
    step: int | None
    k: int
    entropy: float
    scores: dict[str, Score]
    average: float | None
    differences: dict[str, Difference]


def answers_frame(answers: Sequence[Answers]) -> pd.DataFrame:
    """A row for each question that a model was asked: acc, the mean grade of its answers, and how many answers there
    are; step is -1 for a model without one, run the folder."""
    columns = ["method", "step", "run", "seed", "benchmark", "question", "acc", "answers"]
    rows = []
    for each in answers:
        step = UNTRAINED if each.step is None else each.step
        known = SOURCES.get(each.benchmark)
        benchmark = known.title if known else each.benchmark
        for question, grades in each.grades.items():
            acc = sum(grades) / len(grades)
            rows.append((each.model, step, str(each.file.parent), each.seed, benchmark, question, acc, len(grades)))
    return pd.DataFrame(rows, columns=columns)


def benchmarks(answers: pd.DataFrame) -> list[str]:
    """Those that were asked; the paper's come first, in its order."""
    asked = set(answers.benchmark)
    in_the_paper = [source.title for source in BENCHMARKS if source.title in asked]
    return [*in_the_paper, *sorted(asked.difference(in_the_paper))]


def last_scores(answers: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each trained run at its method's last step, as rows of metrics; the metric is what was asked."""
    last = answers[(answers.step >= 0) & (answers.step == answers.groupby("method").step.transform("max"))]
    by_run = ["method", "run", "seed"]
    means = last.groupby([*by_run, "benchmark"], sort=False, dropna=False).acc.mean()
    means = means.groupby(by_run, sort=False, dropna=False).mean()
    return means.rename("value").reset_index().assign(metric=", ".join(benchmarks(last)))


def tries(answers: pd.DataFrame) -> list[int]:
    """The k of pass@k: 1, 4, 16 and so on, up to the number of answers to a question (of the model and benchmark
    with the most). Empty if no question was asked twice, or an answer was graded with anything but 0 and 1."""
    if answers.empty:
        return []
    right = answers.acc * answers.answers
    most = int(answers.groupby(["method", "step", "benchmark"]).answers.min().max())
    if most < 2 or ((right - right.round()).abs() > 1e-9).any():
        return []
    powers = [4**power for power in range(most.bit_length()) if 4**power < most]
    return [*powers, most]


def checkpoints(
    answers: pd.DataFrame, metrics: pd.DataFrame, references: Sequence[str], k: int = 1
) -> list[Checkpoint]:
    """pass@k of each checkpoint, those of the first reference first.

    Args:
        answers: from :func:`answers_frame`.
        metrics: as :func:`.runs.all_metrics` gives them, for the entropy.
        references: models that the others are compared with, at the same step, else at their last one.
        k: with 1 the mean grade, which need not be 0 or 1.
    """
    if k > 1:
        asked_enough = answers.groupby(["method", "step", "benchmark"]).answers.transform("min") >= k
        answers = answers[asked_enough]
        right = (answers.acc * answers.answers).round().astype(int)
        values = [pass_at_k(n, c, k) for n, c in zip(answers.answers, right, strict=True)]
        answers = answers.assign(score=values)
    else:
        answers = answers.assign(score=answers.acc)
    all_benchmarks = benchmarks(answers)
    entropy = metrics[metrics.metric == ENTROPY].groupby(["method", "step"]).value.mean()
    order = [*references[:1], *dict.fromkeys(answers.method)]
    models = {
        (str(method), int(step)): asked
        for (_, method, step), asked in answers.groupby([answers.method.map(order.index), "method", "step"])
    }
    by_question = {
        model: {name: of.groupby("question").score.mean() for name, of in asked.groupby("benchmark")}
        for model, asked in models.items()
    }
    found = []
    for (method, step), asked in models.items():
        ours = by_question[method, step]
        differences = {}
        for reference in references:
            theirs = _same_step(by_question, reference, step)
            if reference != method and theirs.keys() == ours.keys():
                differences[reference] = over_questions(ours, theirs)
        is_whole = len(ours) == len(all_benchmarks)
        found.append(
            Checkpoint(
                method=method,
                step=step if step != UNTRAINED else None,
                k=k,
                entropy=float(entropy.get((method, step), float("nan"))),
                scores={name: _score(asked[asked.benchmark == name], ours[name]) for name in ours},
                average=sum(float(each.mean()) for each in ours.values()) / len(ours) if is_whole else None,
                differences=differences,
            )
        )
    return found


def _same_step(models: dict[tuple[str, int], ByQuestion], reference: str, step: int) -> ByQuestion:
    """The reference at this step, else at its last one; empty if it has no answers, or if only it was trained."""
    steps = [at for method, at in models if method == reference]
    if not steps or (step == UNTRAINED and step not in steps):
        return {}
    return models[reference, step if step in steps else max(steps)]


def _score(asked: pd.DataFrame, means: pd.Series) -> Score:
    mean, low, high = mean_over_questions(means)
    return Score(mean, low, high, round((asked.acc * asked.answers).sum()), int(asked.answers.sum()))
