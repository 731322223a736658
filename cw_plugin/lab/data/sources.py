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
        level, subject, unit: columns that go to ``extra_info`` under these names.
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
    level: str | None = None
    subject: str | None = None
    unit: str | None = None
    training: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        wanted = (self.question, self.ground_truth, self.level, self.subject, self.unit)
        return [column for column in wanted if column is not None]


_ALL = (
    Source("open-rs", "Open-RS", "knoveleng/open-rs", "train", 7000, level="level", training=True),
    # The benchmarks, in the order of the paper's tables.
    Source("aime24", "AIME24", "HuggingFaceH4/aime_2024", "train", 30),
    Source("math500", "MATH-500", "HuggingFaceH4/MATH-500", "test", 500, level="level", subject="subject"),
    Source("amc23", "AMC23", "knoveleng/AMC-23", "train", 40),
    Source(
        "minerva",
        "Minerva",
        "knoveleng/Minerva-Math",
        "train",
        272,
        ground_truth="solution",
        is_boxed=True,
        subject="type",
    ),
    Source("olympiadbench", "OlympiadBench", "knoveleng/OlympiadBench", "train", 675, question="question", unit="unit"),
)
SOURCES = {source.name: source for source in _ALL}
BENCHMARKS = [source for source in _ALL if not source.training]
