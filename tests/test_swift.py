"""ms-swift trains CW-GRPO on a CPU: its own command line, the plugin, and the small model of the quickstart.

ms-swift lies in a folder of its own, over the packages of the environment, because it needs an older TRL and datasets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import reference_weights
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "cpu" / "model"
# ms-swift, and what it imports that the environment has not, or has in a version that it does not take.
PACKAGES = ("ms-swift==4.6.0", "trl==0.29.1", "datasets==4.8.4", "modelscope==1.40.2", "modelscope-hub==0.5.1",
            "json-repair==0.64.5", "dacite==1.9.2")  # fmt: skip
QUESTIONS = ["What is 3 + 4?", "Compute 9 - 5.", "Ann has 7 apples and gets 8 more. How many now?", "What is 20 - 6?"]


@pytest.fixture(scope="module")
def swift() -> Path:
    folder = ROOT / ".cache" / "ms-swift-4.6.0"
    if not (folder / "dacite").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        subprocess.run(command, check=True, timeout=300)
    return folder


def start(swift: Path, out: Path, *flags: str, plugins: tuple[str, ...], processes: int = 1, **environment: str) -> str:
    """``swift rlhf`` as a user calls it; returns what it printed."""
    data = out / "problems.jsonl"
    problems = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    data.write_text("\n".join(map(json.dumps, problems)))
    program = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes > 1 else []
    settings = {
        "rlhf_type": "grpo", "dataset": data, "output_dir": out / "run",
        "model": MODEL, "model_type": "qwen2", "template": "qwen2_5", "system": "", "torch_dtype": "float32",
        "check_model": "false", "tuner_type": "full", "max_completion_length": 16, "learning_rate": 1e-3,
        "max_steps": 2, "temperature": 1.0, "use_cpu": "true", "logging_steps": 1,
        "save_strategy": "no", "report_to": "none",
    }  # fmt: skip
    given = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    given += ["--external_plugins", *(str(ROOT / plugin) for plugin in plugins)]
    path = os.pathsep.join(map(str, (swift, ROOT, ROOT / "tests", os.environ.get("PYTHONPATH", ""))))
    offline = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, *program, swift / "swift" / "cli" / "rlhf.py", *given, *flags],
        env={**os.environ, **offline, "PYTHONPATH": path, "SWIFT_TEST_OUT": str(out), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500,
    )  # fmt: skip
    return result.stdout


def at_loss(out: Path, processes: int, step: int) -> list[dict[str, Any]]:
    """The micro-batches of all processes in a step, by process; each is a dictionary of tensors."""
    found = []
    for process in range(processes):
        files = sorted(out.glob(f"{process}-*.pt"), key=lambda file: int(file.stem.split("-")[1]))
        found += [batch for batch in map(torch.load, files) if batch["step"] == step]
    return found


def expected(rows: list[tuple[list[float], float]], group: list[int], trained: list[bool]) -> list[list[float]]:
    """w~ A of each token, from log-probs and reward of each row, and whether the row is trained on."""
    advantages = []
    for row, number in enumerate(group):
        rewards = torch.tensor([r for (_, r), other in zip(rows, group, strict=True) if other == number]).double()
        advantages.append((rows[row][1] - rewards.mean().item()) / (rewards.std().item() + 1e-4))
    masks = [[int(valid)] * len(x) for (x, _), valid in zip(rows, trained, strict=True)]
    weights, _ = reference_weights([x for x, _ in rows], advantages, masks, group)
    return [[w * a for w in of_row] for of_row, a in zip(weights, advantages, strict=True)]


def rows_of(batches: list[dict[str, Any]]) -> tuple[list[tuple[list[float], float]], list[list[float]]]:
    """Log-probs and reward of each row, by plain transformers under the model that training began with; advantages."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    rows, advantages = [], []
    for batch in batches:
        for ids, mask, found in zip(batch["ids"], batch["completion_mask"].bool(), batch["advantages"], strict=True):
            tokens = ids[-len(mask) :][mask]
            at = torch.arange(len(ids))[-len(mask) :][mask]
            start = int((ids != model.config.pad_token_id).nonzero()[0])  # prompts are padded on the left
            with torch.no_grad():
                logits = model(ids[None, start : at[-1] + 1]).logits[0].double()
            x = F.log_softmax(logits, -1)[at - 1 - start, tokens]
            rows.append((x.tolist(), (int(tokens.sum()) % 17) / 4.0))
            advantages.append(found[mask].tolist())
    return rows, advantages


def test_two_processes_that_share_a_group_train_on_its_weights(swift, tmp_path):
    """Eight responses to one problem in a step; each process has two micro-batches of two.

    Truncated responses are left out of the loss, and of the statistics.
    """
    printed = start(
        swift, tmp_path, "--reward_funcs", "of_tokens", "--num_generations", "8",
        "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--overlong_filter", "true",
        plugins=("tests/swift_plugin.py",), processes=2,
    )  # fmt: skip
    batches = at_loss(tmp_path, 2, 0)
    assert len(batches) == 4, printed[-3000:]
    rows, advantages = rows_of(batches)
    assert len(rows) == 8 and len({reward for _, reward in rows}) > 1
    trained = [not cut for batch in batches for cut in batch["truncated_mask"]]
    assert 2 <= sum(trained) < 8
    for found, wanted in zip(advantages, expected(rows, [0] * 8, trained), strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
    assert len({round(value, 4) for value in advantages[trained.index(True)]}) > 1  # not the same for every token
    logged = re.findall(r"'cw_grpo/sigma': '([\d.]+)'", printed)
    assert len(logged) == 2 and all(float(sigma) > 0 for sigma in logged)


def test_the_plugin_of_the_examples_trains_and_refuses_what_would_lose_the_weights(swift, tmp_path):
    plugins = ("tests/swift_plugin.py", "examples/swift/plugin.py")
    flags = ["--reward_funcs", "of_tokens", "--num_generations", "4", "--per_device_train_batch_size", "8"]
    printed = start(swift, tmp_path, *flags, plugins=plugins, CW_GRPO_KERNEL="none")
    assert "'cw_grpo/extreme_gradient_share'" in printed, printed[-3000:]
    refused = start(swift, tmp_path, *flags, "--importance_sampling_level", "sequence", plugins=plugins)
    assert "importance_sampling_level='sequence' takes one advantage for a whole response" in refused


def test_the_plugin_refuses_megatrons_trainers(swift):
    """Its arguments import the plugin, and then it looks for its trainer in a table of its own."""
    code = (
        "import runpy, sys; sys.modules['swift.megatron.arguments'] = sys; runpy.run_path('examples/swift/plugin.py')"
    )
    path = os.pathsep.join((str(swift), str(ROOT)))
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True
    )
    assert "HostError: CW-GRPO is not available for `megatron rlhf`" in result.stderr
    assert (swift / "swift" / "megatron" / "arguments" / "__init__.py").exists()  # so the name is right
