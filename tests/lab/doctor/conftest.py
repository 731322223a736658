"""A run of verl without faults, composed once for all tests of the doctor."""

import pytest
from doctor_runs import GOOD, write_rows
from omegaconf import DictConfig

from cw_plugin.lab.compose import compose


@pytest.fixture(scope="session")
def overrides(tmp_path_factory) -> list[str]:
    file = write_rows(tmp_path_factory.mktemp("doctor") / "rows.parquet", ["4", "5"] * 6)  # numbers start no process
    return [*GOOD, f"data.train_files={file}", f"data.val_files={file}"]


@pytest.fixture(scope="session")
def composed(overrides) -> DictConfig:
    return compose(overrides)
