"""What ``cw-grpo evaluate`` prints where it has asked a question several times."""

from collections.abc import Sequence
from pathlib import Path

from cw_plugin.lab.evaluation.answers import read_answers
from cw_plugin.lab.reports import scores, tables
from cw_plugin.lab.reports.formats import Table
from cw_plugin.lab.reports.runs import all_metrics


def pass_at_k_table(folder: Path, models: Sequence[str], benchmarks: Sequence[str]) -> Table | None:
    """pass@k of these models on these benchmarks, and the difference to a model that is no checkpoint, else the first.

    Args:
        folder: which ``cw-grpo evaluate`` has written; ``models`` are names of folders in it.

    Returns:
        None if no question was asked several times, or an answer was graded with anything but 0 and 1.
    """
    of_models = [answers for name in models for answers in read_answers(folder / name).answers]
    graded = scores.answers_frame([answers for answers in of_models if answers.benchmark in benchmarks])
    if not scores.tries(graded):
        return None
    references = [scores.base_or_first(graded)]
    at_each_k = scores.checkpoints_at_each_k(graded, all_metrics([]), references)
    return tables.tries_table(at_each_k, scores.benchmarks(graded), references)
