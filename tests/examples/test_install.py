"""install.sh and data.sh: whose environment is removed, one maker at a time, and what is printed."""

import pytest

pytest.importorskip("verl")

import sys

from interpreter import bash

FOR_3_11 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="OpenRLHF's wheel is for Python 3.11")


@pytest.mark.parametrize(
    ("stamp", "said"), [("unfinished\n", "by something else"), ("unfinished\n/another/install.sh\n", "by /another/")]
)
@pytest.mark.parametrize("script", ["cpu/install.sh", pytest.param("openrlhf/cpu/install.sh", marks=FOR_3_11)])
def test_an_environment_that_this_clone_did_not_make_is_left_alone(tmp_path, script, stamp, said):
    theirs, link = tmp_path / "venv", tmp_path / "link"
    theirs.mkdir()
    (theirs / ".cw_plugin_cpu").write_text(stamp)
    (theirs / "precious").touch()
    link.symlink_to(theirs)
    for named in (theirs, link):
        (line,) = bash(script, named, code=1, PYTHON=sys.executable).stderr.splitlines()
        assert str(named) in line and said in line
    assert {file.name for file in theirs.iterdir()} == {".cw_plugin_cpu", "precious"}


def test_an_environment_in_which_ray_would_start_no_worker_is_not_made(tmp_path):
    assert "has a space" in bash("cpu/install.sh", tmp_path / "a clone" / ".venv", code=1, PYTHON=sys.executable).stderr
    assert not (tmp_path / "a clone").exists()


def test_problems_are_made_once(tmp_path):
    bash("cpu/data.sh", QUICKSTART_DATA=str(tmp_path / "data"))
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "data" / "open_rs").iterdir()}
    assert {file.name for file in files} >= {"train.parquet", "test.parquet"}
    bash("cpu/data.sh", QUICKSTART_DATA=str(tmp_path / "data"))
    assert files == {file: file.stat().st_mtime_ns for file in files}


def test_a_folder_of_something_else_is_not_taken_for_problems(tmp_path):
    (tmp_path / "cw_grpo").mkdir()
    assert "name an empty folder" in bash("cpu/data.sh", code=2, QUICKSTART_DATA=str(tmp_path)).stderr
    assert (tmp_path / "cw_grpo").exists()
