"""Scores of checkpoints on benchmarks, in numbers: pass@k over questions, from what ``cw-grpo evaluate`` has graded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from cw_plugin.lab.data.sources import BENCHMARKS, SOURCES
from cw_plugin.lab.evaluation.answers import Answers
from cw_plugin.lab.reports.intervals import ALPHA, Difference, mean_over_questions, over_questions, pass_at_k
from cw_plugin.lab.reports.runs import ENTROPY

NO_STEP = -1  # stands in a table for the step of a model that is no checkpoint

Model = tuple[str, int]  # its method and step
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
        method: the name of its runs, or of a model that is no checkpoint.
        step: None for a model that is no checkpoint, such as the one that training began with.
        k: of pass@k.
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

    @property
    def significant(self) -> set[str]:
        """The other models to which the difference is significant, not corrected for the number of tests."""
        return {other for other, difference in self.differences.items() if difference.p < ALPHA}


def answers_frame(answers: Sequence[Answers]) -> pd.DataFrame:
    """Put together what all models were asked.

    Returns:
        A row for each question that a model was asked, with the columns method; step, NO_STEP for a model that is no
        checkpoint; run, which tells models apart, however often one was asked; seed; benchmark; question; acc, the mean
        grade of its answers; and answers, how many there are.
    """
    columns = ["method", "step", "run", "seed", "benchmark", "question", "acc", "answers"]
    rows = []
    for asked in answers:
        step = NO_STEP if asked.step is None else asked.step
        benchmark = SOURCES[asked.benchmark].title if asked.benchmark in SOURCES else asked.benchmark
        model = (asked.model, step, _identity(asked), asked.seed)
        for question, grades in asked.grades.items():
            rows.append((*model, benchmark, question, sum(grades) / len(grades), len(grades)))
    return pd.DataFrame(rows, columns=columns)


def _identity(asked: Answers) -> str:
    """The name of a model, with its place and the hash of its weights; with its folder of answers if these are unknown.

    So a checkpoint that was evaluated twice, into two folders, is one run.
    """
    place = asked.settings.get("evaluation.checkpoint")
    if place is None:
        return f"{asked.model} {asked.file.parent}"
    return f"{asked.model} {place} {asked.settings.get('evaluation.weights')}"


def benchmarks(answers: pd.DataFrame) -> list[str]:
    """The benchmarks that were asked; the paper's come first, in its order."""
    asked = set(answers.benchmark)
    in_the_paper = [source.title for source in BENCHMARKS if source.title in asked]
    return [*in_the_paper, *sorted(asked.difference(in_the_paper))]


def last_scores(answers: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each trained run where all methods can be compared, as rows of metrics.

    This is at the last step of which every method has answers, over the benchmarks that every run has answered there.
    The metric names the benchmarks and the step. There is no row if there is no such step or benchmark.
    """
    trained = answers[answers.step >= 0]
    methods_at = trained.groupby("step").method.nunique()
    common_steps = methods_at.index[methods_at == trained.method.nunique()]
    last = trained[trained.step == common_steps.max()]  # none if there is no such step
    runs_of = last.groupby("benchmark").run.nunique()
    last = last[last.benchmark.isin(runs_of.index[runs_of == last.run.nunique()])]
    by_run = ["method", "run", "seed"]
    means = last.groupby([*by_run, "benchmark"], sort=False, dropna=False).acc.mean()
    means = means.groupby(by_run, sort=False, dropna=False).mean()
    where = ", ".join([*benchmarks(last), *(f"step {step}" for step in last.step.unique())])
    return means.rename("value").reset_index().assign(metric=where)


def base_or_first(answers: pd.DataFrame) -> str:
    """The model that checkpoints are compared with: the first one that is no checkpoint itself, else the first one."""
    bases = list(answers.method[answers.step == NO_STEP])
    return str(bases[0] if bases else answers.method.iloc[0])


def tries(answers: pd.DataFrame) -> list[int]:
    """The k of pass@k: 1, 4, 16 and so on, up to the number of answers to a question.

    This is the number of the model and benchmark with the most. There is no k if no question was asked twice, or an
    answer was graded with anything but 0 and 1.
    """
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
        metrics: as :func:`.runs.all_metrics` returns them, for the entropy.
        references: models that the others are compared with, at the same step, else at their last one.
        k: with 1 the mean grade, which need not be 0 or 1.
    """
    scored = _scored(answers, k)
    all_benchmarks = set(scored.benchmark)
    entropy = metrics[metrics.metric == ENTROPY].groupby(["method", "step"]).value.mean()
    order = [*references[:1], *dict.fromkeys(scored.method)]
    models: dict[Model, pd.DataFrame] = {
        (str(method), int(step)): asked
        for (_, method, step), asked in scored.groupby([scored.method.map(order.index), "method", "step"])
    }
    by_question = {model: _by_question(asked) for model, asked in models.items()}
    return [
        Checkpoint(
            method=method,
            step=None if step == NO_STEP else step,
            k=k,
            entropy=float(entropy.get((method, step), math.nan)),
            scores=_scores(asked, by_question[method, step]),
            average=_average(by_question[method, step], all_benchmarks),
            differences=_differences(by_question, (method, step), references),
        )
        for (method, step), asked in models.items()
    ]


def checkpoints_at_each_k(answers: pd.DataFrame, metrics: pd.DataFrame, references: Sequence[str]) -> list[Checkpoint]:
    """:func:`checkpoints` with each k of :func:`tries`; none if no question was asked several times."""
    return [checkpoint for k in tries(answers) for checkpoint in checkpoints(answers, metrics, references, k)]


def _scored(answers: pd.DataFrame, k: int) -> pd.DataFrame:
    """The answers with a column score, pass@k of each question; without benchmarks that were asked fewer times."""
    if k == 1:
        return answers.assign(score=answers.acc)
    asked = answers[answers.groupby(["method", "step", "benchmark"]).answers.transform("min") >= k]
    right = (asked.acc * asked.answers).round().astype(int)
    return asked.assign(score=[pass_at_k(n, c, k) for n, c in zip(asked.answers, right, strict=True)])


def _by_question(asked: pd.DataFrame) -> ByQuestion:
    return {name: rows.groupby("question").score.mean() for name, rows in asked.groupby("benchmark")}


def _scores(asked: pd.DataFrame, by_question: ByQuestion) -> dict[str, Score]:
    scores = {}
    for name, rows in asked.groupby("benchmark"):
        mean, low, high = mean_over_questions(by_question[name])
        scores[name] = Score(mean, low, high, round((rows.acc * rows.answers).sum()), int(rows.answers.sum()))
    return scores


def _average(ours: ByQuestion, all_benchmarks: set[str]) -> float | None:
    """The mean over the benchmarks; None if one is missing."""
    if ours.keys() != all_benchmarks:
        return None
    return sum(float(scores.mean()) for scores in ours.values()) / len(ours)


def _differences(
    by_question: Mapping[Model, ByQuestion], model: Model, references: Sequence[str]
) -> dict[str, Difference]:
    """The difference to each other model that was asked the same benchmarks."""
    method, step = model
    ours = by_question[model]
    differences = {}
    for reference in references:
        theirs = _same_step(by_question, reference, step)
        if reference != method and theirs.keys() == ours.keys():
            differences[reference] = over_questions(ours, theirs)
    return differences


def _same_step(by_question: Mapping[Model, ByQuestion], reference: str, step: int) -> ByQuestion:
    """The reference at this step, else at its last one; empty if it has no answers, or if only it has steps."""
    steps = [at for method, at in by_question if method == reference]
    if step in steps:
        return by_question[reference, step]
    if not steps or step == NO_STEP:
        return {}
    return by_question[reference, max(steps)]
