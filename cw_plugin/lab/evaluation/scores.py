"""Scores of checkpoints on benchmarks, in numbers, from what ``cw-grpo evaluate`` has graded.

They are pass@k over questions, the share of questions solved by many of their answers, and how far guessing gets.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
from scipy import stats

from cw_plugin.lab.data.sources import BENCHMARKS, SOURCES
from cw_plugin.lab.evaluation.graded_answers import Answers
from cw_plugin.lab.intervals import Difference, mean_over_questions, over_questions, pass_at_k

NO_STEP = -1  # in a frame, the step of a model that is not known to be of a step

Key = tuple[str, int]  # the name of a model, and its step or NO_STEP


class Measure(NamedTuple):
    """How the answers to a question are scored."""

    name: str  # among the measures of its table, such as "8 of 16"
    score: Callable[[int, int], float]  # how many answers a question has, and how many are right -> its score
    needed: int  # answers to a question; a benchmark that a checkpoint was asked fewer times has no score


class Score(NamedTuple):
    """A checkpoint's score on one benchmark with its 95% interval, and how many of how many answers were right."""

    mean: float
    low: float
    high: float
    right: int
    answers: int


class Checkpoint(NamedTuple):
    """What one checkpoint, or another model, scores; all its seeds together."""

    method: str  # the name of its runs, or of the model
    step: int  # of training; NO_STEP if it is not known, as for the model that training began with
    scores: dict[str, Score]  # by benchmark; without those of which a question was asked too few times
    average: float | None  # over the benchmarks; None if one is missing
    differences: dict[str, Difference]  # other model -> the difference to it, for models with the same benchmarks


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
    if asked.run is not None:
        return f"{asked.model} {asked.run}"
    place = asked.settings.get("evaluation.checkpoint", asked.file.parent)
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
    by_question: dict[Key, dict[str, pd.Series]] = defaultdict(dict)  # the score of each question of a benchmark
    scores: dict[Key, dict[str, Score]] = defaultdict(dict)
    keys = [scored.method.map(order.index), "method", "step", "benchmark"]
    for (_, method, step, benchmark), rows in scored.groupby(keys):
        of_questions = rows.groupby("question").score.mean()
        by_question[method, step][benchmark] = of_questions
        right = round((rows.acc * rows.answers).sum())
        scores[method, step][benchmark] = Score(*mean_over_questions(of_questions), right, int(rows.answers.sum()))
    last = {method: theirs for (method, _), theirs in by_question.items()}  # steps are in order
    found = []
    for (method, step), ours in by_question.items():
        differences = {}
        for reference in references:
            at_last = {} if step == NO_STEP else last.get(reference, {})
            theirs = by_question.get((reference, step), at_last)
            if reference != method and theirs.keys() == ours.keys():
                differences[reference] = over_questions(ours, theirs)
        means = [score.mean for score in scores[method, step].values()]
        average = sum(means) / len(means) if ours.keys() == set(scored.benchmark) else None
        found.append(Checkpoint(method, step, scores[method, step], average, differences))
    return found


def _scored(answers: pd.DataFrame, measure: Measure | None) -> pd.DataFrame:
    """The answers with a column score of each question; without benchmarks that were asked fewer times."""
    if measure is None:
        return answers.assign(score=answers.acc)
    asked = answers[answers.groupby(["method", "step", "benchmark"]).answers.transform("min") >= measure.needed]
    right = (asked.acc * asked.answers).round().astype(int)
    return asked.assign(score=[measure.score(n, c) for n, c in zip(asked.answers, right, strict=True)])
