"""A run; the runs of the boundary study and of the size study; and which of them metrics.parquet has."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from study import append

STEPS = 100
VALIDATE_EVERY = 50  # steps
SEEDS = (1, 2, 3, 4, 5)
FIRST_SEEDS = SEEDS[:3]

LEARNING_RATES = ("1e-5", "3e-5", "1e-4", "3e-4")
UPDATES = (1, 2, 8, 16)  # of the policy from one batch; 2 are one pass over two halves of it, 16 are eight passes
METHODS = ("grpo", "cw_grpo")
NAMES = {"grpo": "GRPO", "clip_cov": "Clip-Cov", "cw_grpo": "CW-GRPO"}
ABLATION = ("width_2", "width_3", "width_4", "negative", "positive")
KERNELS = {
    "grpo": "no kernel: GRPO", "cw_grpo": "1 sigma: CW-GRPO", "width_2": "2 sigmas", "width_3": "3 sigmas",
    "width_4": "4 sigmas", "negative": "1 sigma on negative covariances only",
    "positive": "1 sigma on positive covariances only",
}  # fmt: skip
# Settings in words
AXES = {
    "lr": "learning rate {}", "updates": "updates {}", "stale": "rollouts renewed every {} steps",
    "temperature": "temperature {}", "wrong": "{}% of rewards flipped", "bits": "rollouts with {} bits",
    "fillers": "filler tokens {}", "limit": "no limit on the gradient norm",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run; the defaults are the centre."""

    method: str = "grpo"  # or clip_cov, cw_grpo, or one of ABLATION
    lr: str = "3e-5"  # constant
    updates: int = 2  # of the policy from one batch of 64 responses
    stale: int = 1  # steps after which the policy for rollouts is renewed; 1 is on-policy
    temperature: float = 1.0  # of rollouts, and of the loss; validation has 1
    wrong: int = 0  # per cent of the responses whose right answer counts as wrong, or the reverse
    bits: int = 32  # of the weights for rollouts; 32 leaves them as they are
    fillers: int = 0  # tokens without influence on the reward that the starting model was taught to put into a response
    limit: float = 1.0  # of the gradient norm; a gradient with a larger one is scaled down to it
    width: int = 0  # of a model of the size study; 0 is the study's model, or one with fillers
    answers: int = 4  # to each held-out problem at validation
    seed: int = 1  # 0 for a search
    steps: int = STEPS
    first: int = 0  # step of the first validation after the start; each next one is at sqrt(2) times the step before

    @property
    def validations(self) -> list[int]:
        """The steps after which the model is validated."""
        if not self.first:
            return [*range(0, self.steps, VALIDATE_EVERY), self.steps]
        powers = range(2 * self.steps.bit_length())
        growing = [round(self.first * 2 ** (power / 2)) for power in powers]
        return [0, *(step for step in growing if step < self.steps), self.steps]

    @property
    def held_out(self) -> str:
        """The problems of a validation; a search has its own."""
        return "test" if self.seed else "tune"

    @property
    def model(self) -> str:
        """Folder of the starting model, in examples/study."""
        if self.width:
            return f"sizes/model-{self.width}"
        return f"boundary/model-{self.fillers}" if self.fillers else "model"

    @property
    def name(self) -> str:
        """What is changed from the centre."""
        values = {axis: getattr(self, axis) for axis in AXES}
        changed = [AXES[axis].format(value) for axis, value in values.items() if value != getattr(CENTRE, axis)]
        return ", ".join(changed) or "the centre"


@dataclass(frozen=True)
class LeagueRun(Run):
    """A run of the league: at the centre but for its learning rate, with a weighting of the package or of one's own."""

    weighting: str = "none"


CENTRE = Run()
OTHERS = [
    Run(stale=4), Run(stale=8), Run(temperature=1.5), Run(wrong=10), Run(wrong=30), Run(bits=4), Run(fillers=2),
    Run(fillers=6),
]  # fmt: skip
MAP = [Run(lr=lr, updates=updates) for updates in UPDATES for lr in LEARNING_RATES]
CONTROLS = [Run(limit=math.inf), Run(limit=math.inf, updates=16)]  # added later
POINTS = list(dict.fromkeys([CENTRE, *OTHERS, *MAP]))


def each(points: list[Run], methods: tuple[str, ...], seeds: tuple[int, ...]) -> list[Run]:
    return [replace(point, method=method, seed=seed) for seed in seeds for point in points for method in methods]


BOUNDARY = [
    *each(POINTS, METHODS, SEEDS),
    *each(POINTS, ("clip_cov",), FIRST_SEEDS),
    *each([CENTRE], ABLATION, SEEDS),
    *each(CONTROLS, METHODS, FIRST_SEEDS),
]


def parameters(width: int) -> int:
    """Of a model with this width: 3 layers, heads of 32, an MLP of 4 times the width, and 284 tokens."""
    return 48 * width**2 + 300 * width


def of_width(width: int, lr: str = "") -> Run:
    """The centre with a model of this width, and by default a learning rate in inverse proportion to it."""
    return Run(width=width, answers=16, lr=lr or f"{float(CENTRE.lr) * 128 / width:.3g}")


WIDTHS = (64, 128, 256, 512)  # 0.2, 0.8, 3.2 and 13 million parameters
LINE = [of_width(width) for width in WIDTHS]
OTHER_RATE = [of_width(width, CENTRE.lr) for width in (64, 512)]
# Seed by seed, so that every beginning is a line. The largest model comes last: nobody should wait until it is taught.
SIZES = [*each(LINE, METHODS, FIRST_SEEDS), *each(OTHER_RATE, METHODS, FIRST_SEEDS), *each(LINE, METHODS, SEEDS[3:])]
LARGEST = each([of_width(896)], METHODS, FIRST_SEEDS)

PLANS = {
    "boundary": BOUNDARY, "sizes": SIZES, "largest": LARGEST,
}  # fmt: skip
SETTINGS = list(asdict(CENTRE))  # the columns of metrics.parquet that say which run a row belongs to; and the others:
MEASURED = [
    "step", "accuracy", "reward", "entropy", "grad_norm", "extreme_gradient_share", "extreme_balance",
    "downweighted_share", "covariance_before", "covariance_after", "seconds",
]  # fmt: skip
RIGHT = "right"  # column with the number of right answers to each held-out problem


def finished(file: Path) -> set[Run]:
    steps = pd.read_parquet(file) if file.exists() else pd.DataFrame()
    rows = steps[steps.columns.intersection(SETTINGS)].drop_duplicates().fillna(asdict(CENTRE))  # older than a setting
    return {Run(**row) for row in rows.to_dict("records")}


def add(file: Path, run: Run, rows: list[dict[str, Any]]) -> None:
    right = [row.get(RIGHT) for row in rows]
    steps = pd.DataFrame(rows, columns=MEASURED, dtype="float32").assign(**asdict(run), **{RIGHT: right})
    append(file, steps[[*SETTINGS, *MEASURED, RIGHT]])
