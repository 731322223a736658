"""SkyRL's commands: its programs start, up to Ray, as published and with the line changed."""

from collections.abc import Iterator
from typing import Any

import skyrl.train.entrypoints.main_base  # noqa: F401  (loaded once, before programs start in copies of this process)
from captured_commands import Command
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer

from cw_plugin.errors import HostError
from cw_plugin.hosts.skyrl.hook import with_method
from published import Outcome, Verdict
from published.programs import program_of, start, verdict

SCRIPTS = ("examples/**/*.sh", "integrations/**/*.sh")
ALONE = ("gae", "reinforce++")  # SkyRL's estimators that do not compare the samples of a prompt
# The configuration of a command, whichever class it has.
composed: dict[str, Any] = {}


def judge(command: Command) -> Verdict | None:
    """None for a command that does not train with prompt groups."""
    given = program_of(command)
    if given is None or not any(argument.startswith("trainer.algorithm.") for argument in given[1]):
        return None
    program, arguments = given
    plain = start(command, program, arguments, look)
    if plain.found.get("estimator") in ALONE:
        return None
    if plain.ended and not plain.has_stand_ins:
        return Verdict(Outcome.BROKEN, plain.ended)
    changed = start(command, "cw_plugin.hosts.skyrl", [program, *arguments], look)
    became = verdict(changed)
    return Verdict(Outcome.UNKNOWN, plain.ended) if plain.ended and became.outcome != Outcome.REFUSED else became


def look() -> dict[str, Any]:
    """In the started program: its estimator, and why a trainer that it has loaded is refused."""
    found = dict(composed)
    for trainer in _leaves(RayPPOTrainer):
        try:
            with_method(trainer)
        except HostError as error:
            found["refused"] = str(error)
    return found


def _leaves(trainer: type) -> Iterator[type]:
    for kind in trainer.__subclasses__():
        yield from _leaves(kind)
    if not trainer.__subclasses__():
        yield trainer


def _keep(of_skyrl: Any) -> Any:
    def from_cli_overrides(cls: type, arguments: Any) -> Any:
        cfg = of_skyrl.__func__(cls, arguments)
        composed["estimator"] = str(cfg.trainer.algorithm.advantage_estimator)
        return cfg

    return classmethod(from_cli_overrides)


SkyRLTrainConfig.from_cli_overrides = _keep(vars(SkyRLTrainConfig)["from_cli_overrides"])
