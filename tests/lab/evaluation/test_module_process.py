"""How verl is started: with our trainer, and in a process that ends with ours."""

import pytest

pytest.importorskip("verl")

import signal
import sys

import psutil
from interpreter import PATIENCE, ROOT, python, wait_until
from trainers import v1_trainer

from cw_plugin.errors import HostError
from cw_plugin.lab.evaluation import TRAINER_MODE
from cw_plugin.lab.evaluation.module_process import run_module
from cw_plugin.lab.evaluation.validation_trainer import ValidationTrainer


def test_a_failure_of_verl_is_told(tmp_path, monkeypatch):
    log = tmp_path / "log"
    with pytest.raises(HostError, match=r"(?s)json.tool ended with exit code 1. Its output, .*log, ends:\nExtra data"):
        run_module("json.tool", __file__, log=log)
    (tmp_path / "killed.py").write_text(
        "import os, signal; os.write(1, b'\\xff'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HostError, match="killed ended with exit code -9"):  # as where memory is short
        run_module("killed", log=log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_an_evaluation_starts_ends_with_it(number, tmp_path):
    """However it ends. test_e2e.py kills one while verl's Ray and vLLM run."""
    code = """
import pathlib, signal
from cw_plugin.lab.evaluation.module_process import run_module
signal.signal(signal.SIGINT, signal.default_int_handler)  # which tests in the background of a shell would ignore
run_module("http.server", "0", log=pathlib.Path("log"))
"""
    process = psutil.Popen([sys.executable, "-c", code], cwd=tmp_path)
    wait_until(lambda: process.children(), "nothing was started", process)
    started = process.children()
    process.send_signal(number)
    assert process.wait() != 0
    assert not psutil.wait_procs(started, timeout=PATIENCE)[1]


def test_the_trainer_is_verls_synchronous_one_with_its_own_validation():
    trainer = v1_trainer("algorithm.adv_estimator=grpo", f"trainer.v1.trainer_mode={TRAINER_MODE}")
    assert type(trainer) is ValidationTrainer and trainer.trainer_mode == "sync"


def test_verl_registers_the_trainer_in_a_process_of_its_own():
    """As verl imports it there: through the entry point, which an older installation of this repository lacks."""
    plugin = "cw_plugin.lab.evaluation.verl_plugin"
    assert f'cw_grpo_evaluation = "{plugin}"' in (ROOT / "pyproject.toml").read_text()
    program = """
import sys, verl
assert "verl.trainer.ppo" not in sys.modules
from verl.trainer.ppo.v1 import get_trainer_cls
print(get_trainer_cls(sys.argv[1]).__name__)
"""
    result = python("-c", program, TRAINER_MODE, VERL_USE_EXTERNAL_MODULES=plugin)
    assert result.stdout.splitlines()[-1:] == ["ValidationTrainer"], result.stderr
