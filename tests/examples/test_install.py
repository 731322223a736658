"""install.sh and data.sh: whose environment is removed, one maker at a time, and what is printed."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreter import ROOT, bash

CPU = ROOT / "examples" / "cpu"
FOR_3_11 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="OpenRLHF's wheel is for Python 3.11")


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        ("unfinished\n", "was made by something else, not by"),
        ("unfinished\n/another/install.sh\n", "was made by /another/install.sh, not by"),
    ],
)
@pytest.mark.parametrize("script", ["cpu/install.sh", pytest.param("openrlhf/cpu/install.sh", marks=FOR_3_11)])
def test_an_environment_that_this_clone_did_not_make_is_left_alone(tmp_path, script, stamp, said):
    theirs, link = tmp_path / "venv", tmp_path / "link"
    theirs.mkdir()
    (theirs / ".cw_plugin_cpu").write_text(stamp)
    (theirs / "precious").touch()
    link.symlink_to(theirs)
    for named in (theirs, link):
        result = bash(script, named, code=1, PYTHON=sys.executable)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert str(named) in line and said in line and str(ROOT.resolve()) in line and "VENV=" in line
    assert {file.name for file in theirs.iterdir()} == {".cw_plugin_cpu", "precious"}


def test_an_environment_in_which_ray_would_start_no_worker_is_not_made(tmp_path):
    said = bash("cpu/install.sh", tmp_path / "a clone" / ".venv", code=1, PYTHON=sys.executable).stderr
    assert "has a space in it, and Ray starts no worker from there" in said
    assert not (tmp_path / "a clone").exists()


def test_an_environment_of_this_clone_is_replaced_once_the_first_maker_ends_and_a_failure_names_the_log(tmp_path):
    """As far as that goes without a package index. It is one of another version."""
    ours, stamp = tmp_path / "venv", tmp_path / "venv" / ".cw_plugin_cpu"
    ours.mkdir()
    (ours / "old").touch()
    stamp.write_text(f"c87252dc624829ca\n{CPU.resolve()}/install.sh\n")
    environment = os.environ | {"PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    command, pipe = ["bash", CPU / "install.sh", ours], subprocess.PIPE
    with open(f"{ours}.lock", "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        assert second.stdout.readline() == f"install.sh: another one is making {ours}; waiting for it ...\n"
        assert (ours / "old").exists()
    printed, errors = second.communicate(timeout=120)
    assert [line.split()[1] for line in printed.splitlines()] == ["make", "install"] and second.returncode == 1
    *lines, last = errors.splitlines()
    assert 'failed at "install torch' in last and f"{ours}/install.log has the rest" in last
    assert any(line.startswith("ERROR:") for line in lines)
    assert "\n".join(lines) in (ours / "install.log").read_text()
    assert stamp.read_text() == f"unfinished\n{CPU.resolve()}/install.sh\n"
    assert (ours / "bin" / "python").exists() and not (ours / "old").exists()


def test_problems_are_made_once_and_the_second_maker_waits(tmp_path):
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "QUICKSTART_DATA": str(tmp_path / "data")}
    command = ["bash", str(CPU / "data.sh")]
    with open(tmp_path / "data.lock", "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert second.stdout.readline() == f"data.sh: another one is making {tmp_path}/data; waiting for it ...\n"
        assert not list((tmp_path / "data").iterdir())
    assert second.wait(timeout=300) == 0
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "data" / "open_rs").iterdir()}
    assert {file.name for file in files} >= {"train.parquet", "test.parquet"}
    bash("cpu/data.sh", QUICKSTART_DATA=str(tmp_path / "data"))
    assert files == {file: file.stat().st_mtime_ns for file in files}


def test_a_folder_of_something_else_is_not_taken_for_problems(tmp_path):
    (tmp_path / "cw_grpo").mkdir()
    said = bash("cpu/data.sh", code=2, QUICKSTART_DATA=str(tmp_path)).stderr
    assert (
        said == f"data.sh: {tmp_path} holds files that were not made here; name an empty folder with QUICKSTART_DATA\n"
    )
    assert (tmp_path / "cw_grpo").exists()


def test_with_a_path_for_cd_scripts_find_their_folders():
    """bash prints the folder to which cd goes by CDPATH, if the script is started by a relative path."""
    variables = {"CDPATH": str(ROOT), "DRY_RUN": "1", "RUNS_DIR": "/scratch", "MAX_RESPONSE": "3584"}
    command, environment = ["bash", "examples/skyrl/paper.sh"], os.environ | variables
    settings = subprocess.check_output(command, cwd=ROOT, env=environment, text=True).splitlines()
    assert "trainer.export_path=/scratch/skyrl/DeepSeek-R1-Distill-Qwen-1.5B-cw_grpo" in settings
    assert "generator.sampling_params.max_generate_length=3584" in settings
