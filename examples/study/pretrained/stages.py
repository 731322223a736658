"""The study of a pretrained model: its settings, its runs, and the order in which they are done."""

from dataclasses import dataclass

STEPS = 60
PROMPTS, ANSWERS = 8, 8  # in a step, which makes one update
LIMIT = 16  # tokens of an answer
WARM_UP = 5  # steps of a rising learning rate
TRIED_EVERY = 20  # steps from one validation to the next
HELD_OUT, TRIES = 100, 64  # problems of a validation, and answers to each
RECORDED_EVERY = 5  # steps from one record of tokens to the next
HIGH, MIDDLE, LOW = "3e-5", "1e-5", "3e-6"  # learning rates

METHODS = {
    "grpo": "GRPO",
    "cw_grpo": "CW-GRPO",
    "entropy_bonus": "GRPO, entropy bonus",
    "positive": "CW-GRPO, positive covariances only",
    "negative": "CW-GRPO, negative covariances only",
    "grpo_twice": "GRPO, two updates a batch",
    "clip_higher": "GRPO, two updates a batch, higher clip",
    "state": "exploratory: CW-GRPO, covariance within a state",
}


@dataclass(frozen=True)
class Run:
    """One training run."""

    method: str
    lr: str
    seed: int
    steps: int = STEPS
    recorded_every: int = RECORDED_EVERY  # steps from one record of tokens to the next; 0 is never

    @property
    def name(self) -> str:
        """The names of its files begin with this."""
        return f"{self.method}-lr{self.lr}-seed{self.seed}"


def each(methods: tuple[str, ...], lr: str, seeds: tuple[int, ...]) -> list[Run]:
    """Seed by seed, so that every beginning compares all of the methods."""
    return [Run(method, lr, seed) for seed in seeds for method in methods]


BOTH = ("grpo", "cw_grpo")
# The order of the plan's questions. A stage with five seeds can carry a sentence; one with three shows a range.
STAGES = {
    "(a) and (b): where GRPO's entropy collapses": each(BOTH, HIGH, (1, 2, 3, 4, 5)),
    "(a): where it falls slowly; (c): the remedy of a lower rate": each(BOTH, MIDDLE, (1, 2, 3, 4, 5)),
    "(a): where it hardly moves": each(BOTH, LOW, (1, 2, 3)),
    "(c): the remedy of one update": each(("entropy_bonus",), HIGH, (1, 2, 3, 4, 5)),
    "(c): the halves of the Gaussian": each(("positive", "negative"), HIGH, (1, 2, 3, 4, 5)),
    "(c): the remedy of two updates": each(("grpo_twice", "clip_higher"), HIGH, (1, 2, 3, 4, 5)),
    # Chosen from the results of the stages above, and so it claims nothing.
    "(d), exploratory: the covariance within a state": each(("state",), HIGH, (1, 2, 3, 4, 5)),
}
RUNS = [run for stage in STAGES.values() for run in stage]
