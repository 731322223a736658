"""Import names of earlier versions: each ends in one sentence that says the new name."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NEW_NAMES = {
    "cw_plugin.verl_integration": "cw_plugin.hosts.verl",
    "cw_plugin.trl_integration": "cw_plugin.hosts.trl",
    "cw_plugin.swift_integration": "cw_plugin.hosts.swift",
    "cw_plugin.openrlhf_integration": "cw_plugin.hosts.openrlhf",
    "cw_plugin.skyrl_integration": "cw_plugin.hosts.skyrl",
    "cw_plugin.kernels": "cw_plugin.weighting",
    "cw_plugin.rewards": "cw_plugin.lab.rewards",
    "cw_plugin.data": "cw_plugin.lab.data",
    "cw_plugin.evaluation": "cw_plugin.lab.evaluation",
    "cw_plugin.reports": "cw_plugin.lab.reports",
}


class _OldNames(MetaPathFinder):
    """Asked last, about modules that nobody else has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in NEW_NAMES:
            raise ModuleNotFoundError(f"{fullname} is now {NEW_NAMES[fullname]}; use this name", name=fullname)
        return None


def explain() -> None:
    """Explain old names from now on."""
    sys.meta_path.append(_OldNames())
