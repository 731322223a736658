"""Training problems that are also in a benchmark."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NGRAM = 8  # words; shorter runs also occur in unrelated problems
SHARE = 0.5  # of a benchmark problem's n-grams

_WORD = re.compile(r"[^\W\d_]+|\d+")
_OPERATOR = re.compile(r"[^\W\d_]+|\d+|[-+*/^=<>|]|(?<=[\d)])!")


@dataclass(frozen=True)
class Leak:
    """A training problem found in a benchmark.

    Attributes:
        row: the training problem's row.
        benchmark, benchmark_row: where it was found.
        share: the share of the benchmark problem's n-grams that it contains; 1.0 with ``exact``.
        exact: both have the same words, numbers and operators in the same order.
    """

    row: int
    benchmark: str
    benchmark_row: int
    share: float
    exact: bool


def words(text: str) -> list[str]:
    """The words and numbers of a problem in lower case, without punctuation and LaTeX's braces."""
    return _WORD.findall(text.lower())


def _whole(text: str) -> tuple[str, ...]:
    return tuple(_OPERATOR.findall(text.lower()))


def _ngrams(tokens: list[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)}


def find_leaks(training: Sequence[str], benchmarks: Mapping[str, Sequence[str]]) -> list[Leak]:
    """Compare every training problem with every benchmark problem.

    Returns:
        A leak for each pair that is equal after normalising, or where the training problem contains at least half of
        the benchmark problem's runs of eight words; ordered by training row.
    """
    by_words: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    by_ngram: defaultdict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    sizes: dict[tuple[str, int], int] = {}
    for name, problems in benchmarks.items():
        for index, problem in enumerate(problems):
            tokens = words(problem)
            by_words[_whole(problem)].append((name, index))
            grams = _ngrams(tokens)
            sizes[name, index] = len(grams)
            for gram in grams:
                by_ngram[gram].append((name, index))

    leaks = []
    for row, problem in enumerate(training):
        tokens = words(problem)
        exact = set(by_words.get(_whole(problem), ()))
        shared = Counter(place for gram in _ngrams(tokens) for place in by_ngram.get(gram, ()))
        shares = {place: count / sizes[place] for place, count in shared.items()}
        for place in sorted(exact | {place for place, share in shares.items() if share >= SHARE}):
            is_exact = place in exact
            leaks.append(Leak(row, *place, share=1.0 if is_exact else round(shares[place], 3), exact=is_exact))
    return leaks
