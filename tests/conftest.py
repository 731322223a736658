"""Tests of one file run in one process (`-n 2 --dist loadgroup` in run.sh), and so do all that start Ray, whose clusters
on one machine would find each other: these carry the mark ``xdist_group("ray")``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
