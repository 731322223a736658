"""examples/trl: the quickstart as a user starts it, and the paper's recipe, composed and trained on a CPU."""

import pytest

pytest.importorskip("trl")

import json
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

from accelerate.commands.config.config_args import load_config_from_file
from interpreter import ROOT, bash, free_port

from cw_plugin.lab.configs import differences
from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.lab.reports.runs import read_run

EXAMPLES = ROOT / "examples" / "trl"


PAPER = {  # Table 5 of the paper and what its text says; examples/paper.md has the sources of the others
    "learning_rate": 1e-6, "per_device_train_batch_size": 12, "gradient_accumulation_steps": 4, "num_generations": 12,
    "max_prompt_length": 512, "max_completion_length": 4096, "temperature": 0.7, "warmup_steps": 0.1, "max_steps": 200,
    "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "beta": 0.04, "loss_type": "grpo", "scale_rewards": "group", "num_iterations": 1,
    "steps_per_generation": 4, "importance_sampling_level": "token", "top_p": 1.0, "top_k": 0, "seed": 42,
    "cw_scope": "group", "cw_weights": "gaussian", "cw_record_every": 7,
}  # fmt: skip


def composed(*arguments: str, **environment: str) -> dict[str, Any]:
    """The settings that DRY_RUN=1 prints."""
    settings = {"MODEL_PATH": str(ROOT / "examples" / "cpu" / "model"), "DRY_RUN": "1"} | environment
    printed = bash("trl/paper.sh", *arguments, **settings).stdout
    return json.loads(printed[printed.index("{") :])


def test_the_recipe_composes_to_the_papers_values():
    ours = composed("--cw_record_every", "7")
    assert {name: ours[name] for name in PAPER} == PAPER
    machine = load_config_from_file(str(EXAMPLES / "4_gpus.yaml"))
    assert (machine.num_processes, machine.deepspeed_config["zero_stage"]) == (3, 2)  # the fourth generates
    assert machine.num_processes * ours["generation_batch_size"] == 144
    plain = composed("--cw_record_every", "7", METHOD="grpo", RUNS_DIR="/runs", MAX_RESPONSE="3584")
    assert differences(ours, plain, ["run_name"]) == {
        "cw_weights": ("gaussian", "none"),
        "output_dir": ("checkpoints/trl/model-cw_grpo", "/runs/trl/model-grpo"),
        "max_completion_length": (4096, 3584),
    }


def start_with(server: str, folder: Path, code: int, **environment: str) -> tuple[list[str], str]:
    """The recipe with this program for the server's command, and one that notes its GPUs and arguments for
    accelerate's."""
    for name, program in {"trl": server, "accelerate": f'echo $CUDA_VISIBLE_DEVICES "$@" >>{folder}/started'}.items():
        (folder / name).write_text(f"#!/bin/bash\n{program}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"SERVER_PORT": free_port(), "MAX_RESPONSE": "3584", "OUT": str(folder)} | environment
    result = bash("trl/paper.sh", code=code, PATH=path, **environment)
    started = folder / "started"
    return started.read_text().splitlines() if started.exists() else [], result.stderr


def test_training_starts_when_the_server_listens(tmp_path):
    serve = (
        'echo $CUDA_VISIBLE_DEVICES "$@" >{0}/server; sleep 2; echo up >>{0}/started; exec python -m http.server "$5"'
    )
    started, _ = start_with(serve.format(tmp_path), tmp_path, code=0, CUDA_VISIBLE_DEVICES="4,5,6,7")
    generates, *asked = (tmp_path / "server").read_text().split()
    assert generates == "7" and started[1].startswith("4,5,6 launch ")
    port = asked[asked.index("--port") + 1]
    assert asked[0] == "vllm-serve" and asked[asked.index("--max_model_len") + 1] == "4096"
    assert started[0] == "up" and f"--vllm_server_port {port}" in started[1]
    with pytest.raises(ConnectionRefusedError):  # the server ends with the recipe
        socket.create_connection(("localhost", int(port)))


def test_a_server_that_ends_is_not_waited_for(tmp_path):
    started, said = start_with("echo no GPU >&2; exit 1", tmp_path, code=1)
    assert not started and "no GPU\ntrl vllm-serve has ended" in said


def test_too_few_gpus_and_a_port_that_is_in_use_are_refused(tmp_path):
    """Training would start against whatever listens there."""
    started, said = start_with("", tmp_path, 2, CUDA_VISIBLE_DEVICES="0,1")
    assert not started and "has 2 GPUs, and the recipe needs four" in said
    with socket.create_server(("localhost", 0)) as other:
        started, said = start_with("", tmp_path, 2, SERVER_PORT=str(other.getsockname()[1]))
    assert not started and "set SERVER_PORT to a free port" in said


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, bash("trl/quickstart_cpu.sh", STEPS="2", RUN=str(folder)).stdout


def test_the_quickstart_trains_and_reports(quickstart):
    folder, printed = quickstart
    assert "] step   2  reward" in printed and "validation: right answers" in printed
    assert (folder / "report" / "report.html").exists()
    run = read_run(f"CW-GRPO={folder}")
    assert list(run.series("actor/entropy").index) == [1, 2] == list(run.series("cw_grpo/sigma").index)
    assert set(run.validation("acc").dropna().index) == {0, 2}
    assert [record.step for record in read_tokens(folder)] == [1]


def test_the_same_command_goes_on_and_another_is_refused(quickstart):
    """Also if the run was killed after its last checkpoint, or while it wrote one."""
    folder, _ = quickstart
    trained = (folder / "checkpoint-2" / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "training_args.bin"):
        (folder / "model" / name).unlink()
    (folder / "trainer_state.json").unlink()
    (folder / "checkpoint-9").mkdir()
    again = bash("trl/quickstart_cpu.sh", STEPS="2", RUN=str(folder)).stdout
    assert "is at its last step, 2: nothing is left to train" in again and "] step" not in again
    assert (folder / "model" / "model.safetensors").read_bytes() == trained
    assert list(read_run(folder).series("actor/entropy").index) == [1, 2]
    (folder / "train.log").write_text("the error of an earlier start\n")
    refused = bash("trl/quickstart_cpu.sh", "--learning_rate", "1", STEPS="2", RUN=str(folder), code=1).stderr
    assert "learning_rate=0.0002, not 1.0" in refused and "the error of an earlier start" not in refused


def test_the_program_refuses_a_folder_in_which_another_trains(tmp_path, monkeypatch):
    program = runpy.run_path(str(EXAMPLES / "train.py"))
    needed = ["--config", str(EXAMPLES / "quickstart.yaml"), "--model", "none", "--train_file", "none"]
    monkeypatch.setattr("sys.argv", ["train.py", *needed, "--output_dir", str(tmp_path)])
    in_use = rf"^{tmp_path} is in use by process {os.getpid()} on "
    with program["claim"](tmp_path), pytest.raises(SystemExit, match=in_use):
        program["main"]()
    assert not (tmp_path / "settings.json").exists()


def test_a_run_goes_on_from_another_folder_and_with_other_logs(tmp_path, monkeypatch):
    program = runpy.run_path(str(EXAMPLES / "train.py"))
    keep, whole_paths = program["keep_settings"], program["whole_paths"]
    keep(tmp_path, {"output_dir": "run", "report_to": [], "seed": 1})
    keep(tmp_path, {"output_dir": str(tmp_path), "report_to": ["wandb"], "seed": 1})
    with pytest.raises(SystemExit, match="holds a run with seed=1, not 2"):
        keep(tmp_path, {"output_dir": "run", "report_to": [], "seed": 2})
    (tmp_path / "train.parquet").touch()
    monkeypatch.chdir(tmp_path)
    here = {"model": "Qwen/Qwen2.5-Math-7B", "train_file": "train.parquet", "eval_file": None}
    assert whole_paths(here) == here | {"train_file": str(tmp_path / "train.parquet")}


@pytest.mark.slow
def test_the_recipe_trains_on_a_cpu_in_two_processes(tmp_path, quickstart):
    """By its overlay; the quickstart has made the problems."""
    bash(
        "trl/paper.sh",
        *("--max_steps", "1", "--max_completion_length", "16", "--per_device_train_batch_size", "6"),
        METHOD="cw_grpo",
        OVERLAY=str(EXAMPLES / "cpu.sh"),
        NPROC="2",
        MODEL_PATH=str(ROOT / "examples" / "cpu" / "model"),
        DATA_DIR=os.environ["QUICKSTART_DATA"],
        OUT=str(tmp_path),
    )
    run = read_run(tmp_path)
    assert run.metrics["cw_grpo/signal_share"][1] > 0 and run.metrics["actor/kl_loss"][1] >= 0
    assert (tmp_path / "model" / "model.safetensors").exists()
    (record,) = read_tokens(tmp_path)  # each process has six responses in each of four micro-batches
    assert (record.groups, len(set(record.table["row"].to_pylist()))) == (4, 48)
