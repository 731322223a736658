"""Training problems that are also in a benchmark."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from cw_plugin.lab.data.row_checks import CONTAMINATED, RowProblem

NGRAM = 8  # words; shorter runs also occur in unrelated problems
SHARE = 0.5  # of a benchmark problem's n-grams

_WORD = re.compile(r"[^\W\d_]+|\d+")  # neither punctuation nor LaTeX's braces
_OPERATOR = re.compile(r"[^\W\d_]+|\d+|[-+*/^=<>|]|(?<=[\d)])!")

Words = tuple[str, ...]
Place = tuple[str, int]  # a benchmark, and the index of its problem


def _ngrams(problem: str) -> set[Words]:
    words = _WORD.findall(problem.lower())
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


def _whole(problem: str) -> Words:
    return tuple(_OPERATOR.findall(problem.lower()))


def contaminated(training: Sequence[str], benchmarks: Mapping[str, Sequence[str]]) -> list[RowProblem]:
    """Compare every training problem with every benchmark problem.

    Args:
        training: the training problems.
        benchmarks: the problems of each benchmark, by its name.

    Returns:
        One finding for each pair with the same words, numbers and operators in the same order, or where the training
        problem contains at least half of the benchmark problem's runs of eight words; ordered by training row.
    """
    by_whole: defaultdict[Words, set[Place]] = defaultdict(set)
    by_ngram: defaultdict[Words, list[Place]] = defaultdict(list)
    for name, problems in benchmarks.items():
        for index, problem in enumerate(problems):
            by_whole[_whole(problem)].add((name, index))
            for gram in _ngrams(problem):
                by_ngram[gram].append((name, index))
    sizes = Counter(place for places in by_ngram.values() for place in places)  # the n-grams of a benchmark problem

    findings = []
    for row, problem in enumerate(training):
        equal = by_whole.get(_whole(problem), set())
        shared = Counter(place for gram in _ngrams(problem) for place in by_ngram.get(gram, ()))
        shares = {place: count / sizes[place] for place, count in shared.items()}
        contained = {place for place, share in shares.items() if share >= SHARE}
        for place in sorted(equal | contained):
            how_much = "the same problem as" if place in equal else f"{shares[place]:.0%} of"
            name, index = place
            findings.append(RowProblem(row, CONTAMINATED, f"{how_much} {name} {index}"))
    return findings
