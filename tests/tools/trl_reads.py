"""Runs a program of TRL's, and writes down which of its settings it reads.

python trl_reads.py READS PROGRAM --config FILE.yaml [flags]: the file READS gets "given" and "read", lists of names.
Reading a setting counts once the arguments are parsed, unless all settings are copied, or ours are only checked.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import trl
import yaml

COPIES = {"to_dict", "_asdict_inner", "__repr__", "__str__"}
COMPREHENSIONS = {"<dictcomp>", "<listcomp>"}  # frames of their own before Python 3.12
CHECKS = "cw_plugin.trl_integration.accepted_settings"
_read: set[str] = set()


def watch(kind: type) -> None:
    """Note the settings that are read of objects of this class."""

    def __getattribute__(self: Any, name: str) -> Any:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_name in COMPREHENSIONS:
            frame = frame.f_back
        if frame.f_code.co_name not in COPIES and frame.f_globals.get("__name__") != CHECKS:
            _read.add(name)
        return object.__getattribute__(self, name)

    kind.__getattribute__ = __getattribute__


def main(reads: Path, arguments: list[str]) -> None:
    given = [word[2:] for word in arguments if word.startswith("--") and word != "--config"]
    given += yaml.safe_load(Path(arguments[arguments.index("--config") + 1]).read_text())
    parse = trl.TrlParser.parse_args_and_config

    def parse_and_watch(*args: Any, **named: Any) -> Any:
        parsed = parse(*args, **named)
        for settings in parsed:
            watch(type(settings))
        return parsed

    trl.TrlParser.parse_args_and_config = parse_and_watch
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    reads.write_text(json.dumps({"given": sorted(set(given)), "read": sorted(_read)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
