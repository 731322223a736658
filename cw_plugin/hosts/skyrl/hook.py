"""Puts the method into SkyRL's trainers, as soon as SkyRL's trainer is imported."""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from cw_plugin.errors import HostError
from cw_plugin.hosts.skyrl.needs import NEEDS

if TYPE_CHECKING:
    from skyrl.train.trainer import RayPPOTrainer

    Trainer = type[RayPPOTrainer]


@functools.cache
def install() -> None:
    """Put the method into this process, for Ray's ``worker_process_setup_hook``. It imports nothing of SkyRL."""
    wrapt.register_post_import_hook(_change_trainers, "skyrl.train.trainer")


def _change_trainers(module: ModuleType) -> None:
    """Let every trainer that is made be a CWGRPOTrainer, too, whichever program's class it is."""

    def make(trainer: "Trainer", *_: Any, **__: Any) -> "RayPPOTrainer":
        return object.__new__(with_method(trainer))

    module.RayPPOTrainer.__new__ = staticmethod(make)


def with_method(trainer: "Trainer") -> "Trainer":
    """A trainer's class with CWGRPOTrainer in front of it, unless it derives from that already.

    Raises:
        HostError: the class has one of the methods of NEEDS of its own.
    """
    from skyrl.train.trainer import RayPPOTrainer

    from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer

    if issubclass(trainer, CWGRPOTrainer):
        return trainer
    derived = trainer.__mro__[: trainer.__mro__.index(RayPPOTrainer)]
    names = [need.name.removeprefix("RayPPOTrainer.") for need in NEEDS]
    own = [name for name in names if any(name in vars(kind) for kind in derived)]
    if own:
        raise HostError(
            f"{trainer.__name__} has {' and '.join(own)} of its own, so CW-GRPO does not know what it trains on",
            fix=f"train with a class that leaves {'them' if len(own) > 1 else 'it'} to RayPPOTrainer",
        )
    return type(trainer.__name__, (CWGRPOTrainer, trainer), {})
