"""The studies' scripts for their tests, which name this module in pytest_plugins."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parent.parent / "examples" / "study"


@pytest.fixture
def script(monkeypatch):
    """Imports a script of a study by its name, anew in each test."""
    for folder in (STUDY, STUDY / "boundary", STUDY / "sizes"):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(STUDY)):
            del sys.modules[name]
