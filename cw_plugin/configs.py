"""Reads configurations, and says what differs between two of them."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cw_plugin.errors import DataError, first_line


def flat(config: Any, ignored: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``.

    Args:
        config: a dict, nested or flat already, or a configuration of OmegaConf, whose interpolations stay as they are
            written.
        ignored: patterns of keys to leave out, as ``trainer.*_dir``. A pattern covers what is below its keys.
        prefix: of each key.
    """
    if not isinstance(config, dict):
        from omegaconf import OmegaConf  # who compares plain dicts, as TRL's, may lack it

        config = OmegaConf.to_container(config, resolve=False)
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, (), f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    patterns = [pattern for name in ignored for pattern in (name, f"{name}.*")]
    return {key: found[key] for key in found if not any(fnmatchcase(key, pattern) for pattern in patterns)}


def differences(before: Any, now: Any, ignored: Iterable[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value before, value now) of each setting that differs. A missing setting equals None. The
    configurations, and the patterns of keys that may differ, are as :func:`flat` takes them."""
    patterns = list(ignored)
    first, second = flat(before, patterns), flat(now, patterns)
    keys = dict.fromkeys([*first, *second])
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def read_yaml(file: Path) -> dict[str, Any]:
    """Settings by dotted keys; a DataError if the file is damaged, or holds something else."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        config = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({first_line(error)}); remove it, or restore it") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} is a {type(config).__name__}, not a mapping of settings; remove it, or restore it")
    return flat(config)
