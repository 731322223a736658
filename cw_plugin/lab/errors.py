"""The errors that only the laboratory raises, and what its messages advise."""

from cw_plugin.errors import CWGRPOError

IS_ON_PYPI = False  # after the first release: True


class GradingError(CWGRPOError, RuntimeError):
    """The grading processes do not run, so the answer cannot be graded."""


class DataError(CWGRPOError, ValueError):
    """Data, records, runs or answers that cannot be read or written, have the wrong content, or do not fit together."""


def how_to_install(extra: str = "") -> str:
    """The command that installs this package, with an extra of pyproject.toml, such as "data", or without."""
    from cw_plugin import __version__

    part = f"[{extra}]" if extra else ""
    if IS_ON_PYPI:
        return f'pip install "cw-plugin{part}"'
    wheel = f"./cw_plugin-{__version__}-py3-none-any.whl"
    return f'pip install ".{part}" in a clone of cw_plugin, or pip install "{wheel}{part}"'
