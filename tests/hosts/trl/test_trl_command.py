"""``python -m cw_plugin.hosts.trl grpo``, beside the real command ``trl grpo``."""

import pytest

pytest.importorskip("trl")

from pathlib import Path

import torch
import yaml
from interpreter import python
from reference import reference_advantages
from safetensors.torch import load_file
from trl_training import BASE, MODEL, prompts

from cw_plugin.lab.reports.read_records import read_tokens
from cw_plugin.lab.reports.runs import read_run

OURS, TRLS = "cw_plugin.hosts.trl", "trl.cli.main"


def train(folder: Path, program: str, *flags: str, code: int = 0, **settings: object) -> str:
    """What a command prints. It trains the small model in ``folder``; its configuration has these settings, too."""
    folder.mkdir()
    (folder / "data").mkdir()
    prompts().to_parquet(folder / "data" / "train.parquet")
    names = {"model_name_or_path": str(MODEL), "dataset_name": str(folder / "data"), "output_dir": str(folder / "run")}
    config = BASE | names | {"dtype": "float32", "reward_funcs": ["trl_training.reward"]} | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    flags = ("--config", str(folder / "config.yaml"), *flags)
    result = python("-m", program, "grpo", *flags, ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")
    assert result.returncode == code, result.stdout[-2000:] + result.stderr[-5000:]
    return result.stdout + result.stderr


def test_the_command_trains_on_weights_that_a_flag_and_the_yaml_choose(tmp_path):
    """One step, which accelerate runs in two processes. Its record has the weights of the paper's equations. Without
    weights, in one process, the model is that of trl grpo."""
    two = ("--multi_gpu", "--num_processes", "2")
    train(tmp_path / "ours", OURS, *two, "--cw_record_every", "1", max_steps=1, per_device_train_batch_size=4)
    (record,) = read_tokens(tmp_path / "ours" / "run")
    tokens = record.table.to_pandas()
    x, a = ([[value] for value in tokens[name]] for name in ("log_prob", "advantage"))  # each token as a row
    _, groups = reference_advantages(x, a, [[1]] * len(tokens), tokens["group"].tolist())
    assert len(groups) == 2
    for number, group in groups.items():
        found = tokens[tokens["group"] == number]["weight"].to_numpy()
        assert found == pytest.approx(group["weights"], abs=3e-5) and found.std() > 0.1
    assert list(read_run(tmp_path / "ours" / "run").series("cw_grpo/sigma").index) == [1]

    train(tmp_path / "none", OURS, max_steps=1, cw_weights="none")
    train(tmp_path / "trls", TRLS, max_steps=1)
    ours, none, trls = (load_file(tmp_path / name / "run" / "model.safetensors") for name in ("ours", "none", "trls"))
    assert all(torch.equal(none[name], trls[name]) for name in trls)
    assert any(not torch.equal(ours[name], trls[name]) for name in trls)


def test_what_it_does_not_train_is_one_sentence(tmp_path):
    for arguments, given in ((("sft", "--help"), "sft"), ((), "no command")):
        result = python("-m", OURS, *arguments)
        assert (result.returncode, result.stdout) == (1, "")
        said = result.stderr.splitlines()[-1]
        assert said.startswith(f"cw_grpo: `trl grpo` alone trains with token weights, and {given} was given")
    said = train(tmp_path / "x", OURS, "--cw_weights", "gauss", code=1)
    assert "cw_weights='gauss' is invalid" in said  # from TRL 0.29.0's processes, or from ours
