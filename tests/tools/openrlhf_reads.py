"""train_ppo_ray with the method; every process writes down which of OpenRLHF's arguments it reads, in the folder PROBE.

Reading an argument counts once the arguments are parsed and validated.
"""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_read: set[str] = set()


class Watched(SimpleNamespace):
    """OpenRLHF's nested arguments; ``_key`` is the name of a section, with a dot."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name.startswith("_") or isinstance(value, SimpleNamespace):
            return value
        key = object.__getattribute__(self, "_key") + name
        validates = sys._getframe(1).f_code.co_name == "<module>"
        if key not in _read and not validates:
            _read.add(key)
            with open(Path(os.environ["PROBE"], f"{os.getpid()}.reads"), "a") as file:  # Ray kills its workers
                file.write(f"{key}\n")
        return value


def watched(section: SimpleNamespace, key: str = "") -> Watched:
    """The same arguments, watched."""
    values = {}
    for name, value in vars(section).items():
        values[name] = watched(value, f"{key}{name}.") if isinstance(value, SimpleNamespace) else value
    return Watched(**values, _key=key)


if __name__ == "__main__":
    import openrlhf_reads  # by the name under which Ray's workers find it
    from openrlhf.utils import config

    hierarchize = config.hierarchize
    config.hierarchize = lambda args: openrlhf_reads.watched(hierarchize(args))
    runpy.run_module("cw_plugin.openrlhf_integration", run_name="__main__", alter_sys=True)
