"""The runs of the boundary study and of the size study."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

STEPS = 100
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
    "positive": "1 sigma on positive ones only",
}  # fmt: skip
# Settings in words
AXES = {
    "lr": "learning rate {}", "updates": "updates {}", "stale": "rollouts renewed every {} steps",
    "temperature": "temperature {}", "wrong": "{}% of rewards flipped", "bits": "rollouts with {} bits",
    "fillers": "filler tokens {}", "limit": "no limit on the gradient norm",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run; the defaults are the centre.

    Attributes:
        method: grpo, clip_cov, cw_grpo, or one of ABLATION.
        lr: learning rate, constant.
        updates: of the policy from one batch of 64 responses.
        stale: steps after which the policy for rollouts is renewed; 1 is on-policy.
        temperature: of rollouts, and of the loss; validation has 1.
        wrong: per cent of the responses whose right answer counts as wrong, or the reverse.
        bits: of the weights for rollouts; 32 leaves them as they are.
        fillers: tokens without influence on the reward that the starting model was taught to put into a response.
        limit: of the gradient norm; a gradient with a larger one is scaled down to it.
        width: of a model of the size study; 0 is the study's model, or one with fillers.
        answers: to each held-out problem at validation.
    """

    method: str = "grpo"
    lr: str = "3e-5"
    updates: int = 2
    stale: int = 1
    temperature: float = 1.0
    wrong: int = 0
    bits: int = 32
    fillers: int = 0
    limit: float = 1.0
    width: int = 0
    answers: int = 4
    seed: int = 1
    steps: int = STEPS

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


CENTRE = Run()
LINES = {
    "stale": [replace(CENTRE, stale=value) for value in (1, 4, 8)],
    "temperature": [replace(CENTRE, temperature=value) for value in (1.0, 1.5)],
    "wrong": [replace(CENTRE, wrong=value) for value in (0, 10, 30)],
    "bits": [replace(CENTRE, bits=value) for value in (32, 4)],
    "fillers": [replace(CENTRE, fillers=value) for value in (0, 2, 6)],
}
MAP = [replace(CENTRE, lr=lr, updates=updates) for updates in UPDATES for lr in LEARNING_RATES]
CONTROLS = [replace(point, limit=math.inf) for point in (CENTRE, replace(CENTRE, updates=16))]  # added later
POINTS = list(dict.fromkeys([CENTRE, *(point for line in LINES.values() for point in line), *MAP]))


def each(points: list[Run], methods: tuple[str, ...], seeds: tuple[int, ...]) -> list[Run]:
    return [replace(point, method=method, seed=seed) for seed in seeds for point in points for method in methods]


def runs() -> list[Run]:
    """Those of the boundary study."""
    return [
        *each(POINTS, METHODS, SEEDS),
        *each(POINTS, ("clip_cov",), FIRST_SEEDS),
        *each([CENTRE], ABLATION, SEEDS),
        *each(CONTROLS, METHODS, FIRST_SEEDS),
    ]


# The size study: 0.2, 0.8, 3.2, 13 and 39 million parameters
WIDTHS, LARGEST = (64, 128, 256, 512), 896
OTHER_RATE = (64, 512)  # widths at which the centre's learning rate is tried as well


def parameters(width: int) -> int:
    """Of a model with this width: 3 layers, heads of 32, an MLP of 4 times the width, and 284 tokens."""
    return 48 * width**2 + 300 * width


def of_width(width: int, **settings: Any) -> Run:
    """The centre with a model of this width, and a learning rate in inverse proportion to it."""
    rate = float(CENTRE.lr) * 128 / width
    return replace(CENTRE, **{"width": width, "answers": 16, "lr": f"{rate:.3g}"} | settings)


def sizes() -> list[Run]:
    """The runs of the size study, but for the largest model: seed by seed, so that every part of them is a line."""
    line, other = [of_width(width) for width in WIDTHS], [of_width(width, lr=CENTRE.lr) for width in OTHER_RATE]
    later = SEEDS[len(FIRST_SEEDS) :]
    return [*each(line, METHODS, FIRST_SEEDS), *each(other, METHODS, FIRST_SEEDS), *each(line, METHODS, later)]


def largest() -> list[Run]:
    """Apart, because nobody should wait for the largest model before the others are trained."""
    return each([of_width(LARGEST)], METHODS, FIRST_SEEDS)


PLANS = {"boundary": runs, "sizes": sizes, "largest": largest}
SETTINGS = list(asdict(CENTRE))  # the columns of metrics.parquet that say which run a row belongs to
