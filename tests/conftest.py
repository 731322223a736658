"""Which tests share a process where pytest runs several (run.sh: ``-n 2 --dist loadgroup``).

Those of one file do; and all that start Ray, whose clusters on one machine would find each other. These carry the mark
``xdist_group("ray")``.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
