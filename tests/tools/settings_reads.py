"""Writes down which settings a host's code reads, in each of its processes, in files of the folder PROBE.

Settings are the attributes of dataclasses (TRL, ms-swift, SkyRL) or of namespaces (OpenRLHF). For verl's, which lie in
OmegaConf's sections, see config_reads.py. Code that copies all settings, or checks some, does not count as a reader.

    python settings_reads.py PARSER PROGRAM [arguments]     PARSER: the program's kind of transformers' HfArgumentParser
"""

import os
import pkgutil
import runpy
import sys
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

COPIES = {"to_dict", "asdict", "_asdict_inner", "__repr__", "__str__"}
CHECKS = {"__post_init__", "<module>"}  # of a dataclass; of OpenRLHF's program, before it trains
COMPREHENSIONS = {"<dictcomp>", "<listcomp>"}  # frames of their own before Python 3.12
_written: set[str] = set()


class Section(SimpleNamespace):
    """A namespace that can be watched."""


def unread(probe: Path, given: Iterable[str]) -> set[str]:
    """The settings among those given that no process has read."""
    return set(given) - {key for file in probe.glob("*.reads") for key in file.read_text().split()}


def watch(kind: type) -> None:
    """Write down what is read of objects of this class. One within another is a section: ``section.name`` is read."""

    def __getattribute__(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name.startswith("_"):
            return value
        key = vars(self).get("_section", "") + name
        if isinstance(value, kind):
            object.__setattr__(value, "_section", f"{key}.")
        elif key not in _written and _is_a_use(sys._getframe(1)):
            _write_down(key)
        return value

    kind.__getattribute__ = __getattribute__


def _is_a_use(frame: FrameType) -> bool:
    while frame.f_back and frame.f_code.co_name in COMPREHENSIONS:
        frame = frame.f_back
    function, module = frame.f_code.co_name, str(frame.f_globals.get("__name__"))
    is_check = function in CHECKS or function.lstrip("_").startswith("validate") or module.endswith("refused_settings")
    return function not in COPIES and not is_check


def _write_down(key: str) -> None:
    _written.add(key)
    with open(Path(os.environ["PROBE"], f"{os.getpid()}.reads"), "a") as file:  # at once, because Ray kills its workers
        file.write(f"{key}\n")


def main(parser: str, arguments: list[str]) -> None:
    parser_class = pkgutil.resolve_name(parser)
    parse = parser_class.parse_args_into_dataclasses

    def parse_and_watch(*args: Any, **named: Any) -> Any:
        parsed = parse(*args, **named)
        for settings in filter(is_dataclass, parsed):
            watch(type(settings))
            if hasattr(settings, "training_args"):  # ms-swift copies its settings to what the trainer gets
                watch(type(settings.training_args))
        return parsed

    parser_class.parse_args_into_dataclasses = parse_and_watch
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
