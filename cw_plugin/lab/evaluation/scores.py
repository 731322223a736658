"""Scores of checkpoints on benchmarks, in numbers, from what ``cw-grpo evaluate`` has graded.

They are pass@k over questions, the share of questions solved by many of their answers, and how far guessing gets.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pandas as pd
from scipy import stats

from cw_plugin.lab.data.sources import BENCHMARKS, SOURCES
from cw_plugin.lab.evaluation.graded_answers import Answers
from cw_plugin.lab.intervals import Difference, mean_over_questions, over_questions, pass_at_k

NO_STEP = -1  # in a frame, the step of a model that is not known to be of a step

Key = tuple[str, int]  # the name of a model, and its step or NO_STEP
ByQuestion = dict[str, pd.Series]  # benchmark -> the score of each question, by question


class Measure(NamedTuple):
    """How the answers to a question are scored.

    Attributes:
        name: of the measure among those of its table, such as "8 of 16".
        score: how many answers a question has, and how many are right -> its score.
        needed: answers to a question. A benchmark that a checkpoint was asked fewer times has no score.
    """

    name: str
    score: Callable[[int, int], float]
    needed: int


@dataclass(frozen=True)
class Score:
    """A checkpoint's score on one benchmark with its 95% interval, and how many of how many answers were right."""

    mean: float
    low: float
    high: float
    right: int
    answers: int


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint, or another model, scores; all its seeds together.

    Attributes:
        method: the name of its runs, or of the model.
        step: of training; None if it is not known, as for the model that training began with.
        scores: benchmark -> score; without those of which a question was asked too few times.
        average: over the benchmarks; None if one is missing.
        differences: other model -> the difference to it, for models with the same benchmarks.
    """

    method: str
    step: int | None
    scores: dict[str, Score]
    average: float | None
    differences: dict[str, Difference]


def answers_frame(answers: Sequence[Answers]) -> pd.DataFrame:
    """Put together what all models were asked.

    Returns:
        A row for each question that a model was asked, with the columns method, the name of the model; step, or
        NO_STEP; is_trained, whether it is of a known run or step; run, which tells training runs apart, and other
        models; seed; benchmark; question; ground_truth, None if it is not known; acc, the mean grade of its answers;
        and answers, how many there are.
    """
    of_question = ["question", "ground_truth", "acc", "answers"]
    columns = ["method", "step", "is_trained", "run", "seed", "benchmark", *of_question]
    rows = []
    for asked in answers:
        step = NO_STEP if asked.step is None else asked.step
        is_trained = asked.step is not None or asked.run is not None
        benchmark = SOURCES[asked.benchmark].title if asked.benchmark in SOURCES else asked.benchmark
        model = (asked.model, step, is_trained, _identity(asked), asked.seed)
        for question, grades in asked.grades.items():
            ground_truth = asked.ground_truths.get(question)
            rows.append((*model, benchmark, question, ground_truth, sum(grades) / len(grades), len(grades)))
    return pd.DataFrame(rows, columns=columns)


def _identity(asked: Answers) -> str:
    """The run of a model; without a run, its place and the hash of its weights; without these, its folder of answers.

    So a checkpoint that was evaluated twice, into two folders, counts once.
    """
    place = asked.settings.get("evaluation.checkpoint")
    if asked.run is not None:
        return f"{asked.model} {asked.run}"
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
    common = trained[trained.groupby("step").method.transform("nunique") == trained.method.nunique()]
    last = common[common.step == common.step.max()]  # none if there is no such step
    last = last[last.groupby("benchmark").run.transform("nunique") == last.run.nunique()]
    by_run = ["method", "run", "seed"]
    means = last.groupby([*by_run, "benchmark"], sort=False, dropna=False).acc.mean()
    means = means.groupby(by_run, sort=False, dropna=False).mean()
    where = ", ".join([*benchmarks(last), *(f"step {step}" for step in last.step.unique())])
    return means.rename("value").reset_index().assign(metric=where)


def base_or_first(answers: pd.DataFrame) -> str:
    """The model that checkpoints are compared with: the first one that no run has trained, else the first one."""
    bases = list(answers.method[~answers.is_trained.astype(bool)])
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


def pass_at(k: int) -> Measure:
    """pass@k of a question."""
    return Measure(str(k), partial(pass_at_k, k=k), needed=k)


def solved_by(least: int, of: int) -> Measure:
    """The probability that ``least`` or more of ``of`` answers to a question are right: 1 or 0, unless it has more."""
    return Measure(f"{least} of {of}", lambda n, right: float(stats.hypergeom.sf(least - 1, n, right, of)), needed=of)


def levels(most: int) -> list[int]:
    """How many of ``most`` answers to a question have to be right: 1, an eighth and a half of them; none of 0."""
    return sorted({1, math.ceil(most / 8), math.ceil(most / 2)}) if most else []


def guessed(ground_truths: Sequence[str], answers: int, least: int = 1) -> float:
    """The share of questions that guessing solves, by at least ``least`` of ``answers`` guesses each.

    It is that of the better of two guessers. One knows the ground truths of all other questions, and draws from them.
    The other knows, where all ground truths are whole numbers, the lowest and the highest, and draws from all numbers
    between them.

    Args:
        ground_truths: that of each question, as text.
        answers: guesses for each question.
        least: how many of them have to be right.
    """
    truths = pd.Series([" ".join(truth.split()) for truth in ground_truths])
    if len(truths) < 2:
        return 0.0
    chances = [(truths.groupby(truths).transform("size") - 1) / (len(truths) - 1)]
    if truths.str.fullmatch(r"[+-]?\d{1,15}").all():
        numbers = truths.astype("int64")
        chances.append(pd.Series(1 / (numbers.max() - numbers.min() + 1), truths.index))
    return max(float(stats.binom.sf(least - 1, answers, chance).mean()) for chance in chances)


def checkpoints(answers: pd.DataFrame, references: Sequence[str], measure: Measure | None = None) -> list[Checkpoint]:
    """The scores of each checkpoint, those of the first reference first.

    Args:
        answers: from :func:`answers_frame`.
        references: models that the others are compared with, at the same step, else at their last one.
        measure: of a question; by default the mean grade of its answers, which need not be 0 or 1.
    """
    scored = _scored(answers, measure)
    order = [*references[:1], *dict.fromkeys(scored.method)]
    groups = scored.groupby([scored.method.map(order.index), "method", "step"])
    rows_of: dict[Key, pd.DataFrame] = {(str(method), int(step)): rows for (_, method, step), rows in groups}
    by_question = {
        key: {name: asked.groupby("question").score.mean() for name, asked in rows.groupby("benchmark")}
        for key, rows in rows_of.items()
    }
    found = []
    for (method, step), ours in by_question.items():
        is_whole = ours.keys() == set(scored.benchmark)
        checkpoint = Checkpoint(
            method=method,
            step=None if step == NO_STEP else step,
            scores=_scores(rows_of[method, step], ours),
            average=sum(float(of_questions.mean()) for of_questions in ours.values()) / len(ours) if is_whole else None,
            differences=_differences(by_question, (method, step), references),
        )
        found.append(checkpoint)
    return found


def _scored(answers: pd.DataFrame, measure: Measure | None) -> pd.DataFrame:
    """The answers with a column score of each question; without benchmarks that were asked fewer times."""
    if measure is None:
        return answers.assign(score=answers.acc)
    asked = answers[answers.groupby(["method", "step", "benchmark"]).answers.transform("min") >= measure.needed]
    right = (asked.acc * asked.answers).round().astype(int)
    return asked.assign(score=[measure.score(n, c) for n, c in zip(asked.answers, right, strict=True)])


def _scores(rows: pd.DataFrame, by_question: ByQuestion) -> dict[str, Score]:
    scores = {}
    for name, asked in rows.groupby("benchmark"):
        mean, low, high = mean_over_questions(by_question[name])
        scores[name] = Score(mean, low, high, round((asked.acc * asked.answers).sum()), int(asked.answers.sum()))
    return scores


def _differences(by_question: Mapping[Key, ByQuestion], key: Key, references: Sequence[str]) -> dict[str, Difference]:
    """The difference to each reference that was asked the same benchmarks."""
    method, step = key
    ours = by_question[key]
    differences = {}
    for reference in references:
        theirs = _at_step(by_question, reference, step)
        if reference != method and theirs.keys() == ours.keys():
            differences[reference] = over_questions(ours, theirs)
    return differences


def _at_step(by_question: Mapping[Key, ByQuestion], reference: str, step: int) -> ByQuestion:
    """The reference at this step, else at its last one; empty if it has no answers, or if only it has steps."""
    steps = [at for method, at in by_question if method == reference]
    if step in steps:
        return by_question[reference, step]
    if not steps or step == NO_STEP:
        return {}
    return by_question[reference, max(steps)]
