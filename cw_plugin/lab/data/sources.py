"""The sources of the paper's data (its Table 4), and the names of their columns."""

from typing import NamedTuple


class Source(NamedTuple):
    """A dataset on the Hugging Face hub."""

    name: str  # on the command line
    title: str  # in the paper's tables
    path: str  # its name on the hub, which is also the data_source of its rows
    split: str  # the one that holds the paper's rows
    rows: int  # how many these are
    question: str = "problem"  # the column with the question
    ground_truth: str = "answer"  # the column with the right answer
    is_boxed: bool = False  # whether this column is a worked solution, whose last \boxed holds the answer
    training: bool = False  # whether this is training data, not a benchmark


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
