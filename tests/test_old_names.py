"""Names of earlier versions, as users have them in scripts and commands."""

import importlib

import pytest
from interpreter import python

from cw_plugin.old_names import NEW_NAMES


@pytest.mark.parametrize("old", NEW_NAMES)
def test_an_old_import_says_the_new_name(old):
    with pytest.raises(ModuleNotFoundError, match=f"{old} is now {NEW_NAMES[old]}; use this name"):
        importlib.import_module(old)


def test_an_old_command_says_the_new_name():
    result = python("-m", "cw_plugin.openrlhf_integration")
    assert result.returncode == 1 and "is now cw_plugin.hosts.openrlhf; use this name" in result.stderr
    assert "No module named 'cw_plugin.no_such_module'" in python("-c", "import cw_plugin.no_such_module").stderr
