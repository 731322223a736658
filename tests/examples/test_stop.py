"""Each script that trains, ended in the middle: everything that it has started ends, and the same command goes on.

The scripts and their launcher are the real ones; a small program stands in for what they train with.
"""

import pytest

pytest.importorskip("verl")

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from interpreter import PATIENCE, ROOT, THAT_TRAIN, free_port, wait_until

# In the place of python, accelerate, trl, swift and cw-grpo. The launcher and its like are run. A trainer leaves a
# daemon that nothing ties to it, writes down both process ids, and takes its time unless it is told to end.
STAND_IN = r"""#!/bin/bash
case "$*" in
    *launch.py* | *supervise.py* | *run_guarded.py* | *folder_lock*) exec {python} "$@" ;;
    *vllm-serve*) exec {python} -m http.server --bind 127.0.0.1 "$SERVER_PORT" ;; # TRL's recipe waits until it answers
    *main_ppo* | *train.py* | *hosts.openrlhf* | *hosts.skyrl* | rlhf\ * | *study.py*)
        [ ! -e {folder}/done ] || exit 0
        setsid sleep 300 &
        echo $! $$ >>"$PIDS"
        sleep 300
        ;;
esac
"""
# The recipes of verl differ in their settings alone.
SCRIPTS = [script for script in THAT_TRAIN if not script.startswith("run_")] + ["run_qwen2_5_math_7b_fsdp.sh"]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the scripts, whose environments and problems are there."""
    folder = tmp_path / "clone" / "examples"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("*.parquet", "*.safetensors", "*.svg"))
    (tmp_path / "clone" / "cw_plugin").symlink_to(ROOT / "cw_plugin")
    for script in ("cpu/install.sh", "cpu/data.sh", "openrlhf/cpu/install.sh", "skyrl/cpu/install.sh"):
        (folder / script).write_text("")
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3", "accelerate", "trl", "swift", "cw-grpo"):
        (programs / name).write_text(STAND_IN.format(python=sys.executable, folder=tmp_path))
        (programs / name).chmod(0o755)
    return folder


def start(examples: Path, script: str) -> subprocess.Popen[str]:
    venv, name = examples.parents[1] / "venv", script.replace("/", "-")
    folders = {"RUN": name, "OUT": name, "WORK": name, "PIDS": f"{name}.pids"}
    settings = {key: str(examples.parents[1] / value) for key, value in folders.items()}
    settings |= {"METHOD": "cw_grpo", "SEED": "1", "STEPS": "1", "LR": "1"}
    settings |= {"MODEL": "model", "DATA": "data", "VENV": str(venv), "SERVER_PORT": free_port()}
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command, env = ["bash", str(examples / script)], {**os.environ, **settings, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trainers(examples: Path, script: str) -> list[psutil.Process]:
    """Those that live of what a script has started to train."""
    pids = examples.parents[1] / f"{script.replace('/', '-')}.pids"
    numbers = map(int, pids.read_text().split() if pids.exists() else ())
    living = [psutil.Process(number) for number in numbers if psutil.pid_exists(number)]
    return [process for process in living if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_everything_ends_with_the_script_and_the_same_command_goes_on(examples, number):
    running = {script: start(examples, script) for script in SCRIPTS}
    below = []
    for script, process in running.items():
        wait_until(lambda script=script: len(trainers(examples, script)) > 1, f"{script} does not train", process)
        below += psutil.Process(process.pid).children(recursive=True) + trainers(examples, script)
    for process in running.values():
        process.send_signal(number)
    (examples.parents[1] / "done").touch()
    again = {script: start(examples, script) for script in SCRIPTS}  # at once, while what is left is being ended
    for script, process in running.items():
        process.communicate()
        assert process.returncode == -number, script
    assert not psutil.wait_procs(below, timeout=PATIENCE)[1]
    for script, process in again.items():
        said = process.communicate()
        assert process.returncode == 0, (script, said)


@pytest.mark.parametrize("script", THAT_TRAIN)
def test_a_script_starts_no_process_before_its_supervisor(script, tmp_path):
    """A bash that waits for one can miss a Ctrl-C. Here the PATH has Python alone, which says how it is called."""
    (tmp_path / "python3").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    file = ROOT / "examples" / script
    command = [shutil.which("bash"), file.name]  # from its own folder, where $0 has no slash
    result = subprocess.run(command, cwd=file.parent, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"/supervise.py {command[0]} {file.name}\n" in result.stdout


def test_a_second_training_in_the_folder_is_refused_in_a_sentence(examples):
    scripts = [script for script in SCRIPTS if script.startswith(("trl", "swift", "openrlhf", "skyrl"))]
    running = {script: start(examples, script) for script in scripts}
    for script, process in running.items():
        wait_until(lambda script=script: len(trainers(examples, script)) > 1, f"{script} does not train", process)
        before = trainers(examples, script)
        second = start(examples, script)
        said = second.communicate()[1]
        assert second.returncode == 2 and said.count("\n") == 1, said
        assert f" is in use by process {process.pid} on " in said
        assert trainers(examples, script) == before
    for process in running.values():
        process.terminate()
        process.communicate()
