"""Reads the covariance records of a run (``covariance/step_*.parquet``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.bins import Bins, add_bins
from cw_plugin.errors import ReportError
from cw_plugin.files import find
from cw_plugin.reports.runs import refuse_several

Records = dict[int, Bins]  # step -> its bins

_STEP = re.compile(r"step_(\d+)(-\d+)?(\.tokens)?\.parquet")  # -2 and on: later batches of the step
_COLUMNS = ("edge", "tokens", "covariance", "weight", "weighted")


def read_records(path: Path, steps: tuple[int, int] | None = None) -> Records:
    """The bins of every recorded step below ``path``, of those from ``steps[0]`` to ``steps[1]`` if given.

    Raises:
        ReportError: there is no record, the records are of several runs, or one cannot be read.
    """
    if not path.exists():
        raise ReportError(f"{path} does not exist; give the folder of a run")
    files = _files(path, tokens=False)
    if not files:
        raise ReportError(
            f"{path} holds no covariance record (covariance/step_*.parquet); train with adv_estimator=cw_grpo and "
            "+algorithm.cw_grpo.record_every=50, for plain GRPO with +algorithm.cw_grpo.kernel=none as well"
        )
    chosen = {step: files[step] for step in sorted(files) if steps is None or steps[0] <= step <= steps[1]}
    if not chosen:
        raise ReportError(
            f"{path} has records of the steps {', '.join(map(str, sorted(files)))}, none of them in --steps"
        )
    return {step: add_bins([_read(file, _COLUMNS) for file in files]) for step, files in chosen.items()}


def _files(path: Path, tokens: bool) -> dict[int, list[Path]]:
    """Step -> its files, of bins or of tokens."""
    files: dict[int, list[Path]] = {}
    for file in find(path, "step_*.parquet"):
        found = _STEP.fullmatch(file.name)
        if found and bool(found[3]) == tokens:
            files.setdefault(int(found[1]), []).append(file)
    refuse_several(path, {file.parent for of_step in files.values() for file in of_step})
    return files


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``"50"`` as (50, 50), ``"1:50"`` as (1, 50).

    Raises:
        ReportError: anything else.
    """
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdigit() and (last or first).isdigit()):
        raise ReportError(f"--steps must be one step, or the first and last as 1:50, got {text!r}")
    return int(first), int(last or first)


def read_extremes(path: Path) -> list[dict[str, object]]:
    """The most extreme tokens of the last step that recorded them, positive ones first; empty if none did."""
    files = _files(path, tokens=True)
    rows = []
    for file in files[max(files)] if files else []:
        columns = _read(file, ("covariance", "weight", "token", "context"))
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return sorted(rows, key=lambda row: (row["covariance"] < 0, -abs(row["covariance"])))


def _read(file: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        table = pq.read_table(file, columns=list(names))
        return {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ReportError(f"{file} cannot be read as a covariance record ({error}); remove it") from None


def together(runs: Sequence[Records]) -> Bins:
    """All steps of all runs as one distribution."""
    return add_bins([bins for records in runs for bins in records.values()])


def title(name: str, runs: Sequence[Records]) -> str:
    """A label for the result of :func:`together`."""
    steps = sorted({step for records in runs for step in records})
    seeds = f" of {len(runs)} runs" if len(runs) > 1 else ""
    return f"{name}, step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}{seeds}"
