r"""The sources of the paper's data (its Table 4), and the names of their columns."""

from typing import NamedTuple


class Source(NamedTuple):
    r"""A dataset on the Hugging Face hub.

    Attributes:
        name: its name on the command line.
        title: its name in the paper's tables.
        path: its name on the hub, which is also the ``data_source`` of its rows.
        split: the split that holds the paper's rows.
        rows: the number of these rows.
        question: the column with the question.
        ground_truth: the column with the right answer.
        is_boxed: whether this column is a worked solution, whose last ``\boxed`` holds the answer.
        training: whether this is training data, not a benchmark.
    """

    name: str
    title: str
    path: str
    split: str
    rows: int
    question: str = "problem"
    ground_truth: str = "answer"
    is_boxed: bool = False
    training: bool = False


# A new one is appended. What else counts them: tests/lab/data/test_data.py, lab/data/README.md, lab/data/__init__.py,
# examples/README.md, and tests/benchmarks/bench_rewards.py. Commands and reports take them from here.
_ALL = (
    Source("open-rs", "Open-RS", "knoveleng/open-rs", "train", 7000, training=True),
    # The benchmarks, in the order of the paper's tables.
    Source("aime24", "AIME24", "HuggingFaceH4/aime_2024", "train", 30),
    Source("math500", "MATH-500", "HuggingFaceH4/MATH-500", "test", 500),
    Source("amc23", "AMC23", "knoveleng/AMC-23", "train", 40),
    Source("minerva", "Minerva", "knoveleng/Minerva-Math", "train", 272, ground_truth="solution", is_boxed=True),
    Source("olympiadbench", "OlympiadBench", "knoveleng/OlympiadBench", "train", 675, question="question"),
)
SOURCES = {source.name: source for source in _ALL}
BENCHMARKS = [source for source in _ALL if not source.training]
