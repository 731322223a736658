"""A small program in the place of main_ppo, and the folder of its run."""

from pathlib import Path

import pytest
from small_trainer import TRAINER


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"
