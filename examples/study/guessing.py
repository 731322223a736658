"""How far guessing gets on a study's held-out problems."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scipy import stats


def guessed(held_out: Sequence[str], known: Iterable[str], least: int, guesses: int) -> float:
    """The share of held-out problems that guessing solves, by at least ``least`` of ``guesses`` guesses each.

    Args:
        held_out: the right answer of each held-out problem.
        known: the right answers of the training problems, from which the guesses are drawn.
        least: how many guesses have to be right.
        guesses: for each problem.
    """
    number = Counter(known)
    solved = [stats.binom.sf(least - 1, guesses, number[answer] / number.total()) for answer in held_out]
    return float(sum(solved) / len(solved))
