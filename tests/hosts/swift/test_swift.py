"""ms-swift trains CW-GRPO on a CPU: its own command line, the plugin, and the small model of the quickstart.

ms-swift lies in a folder of its own, over the packages of the environment, because it needs an older TRL and datasets.
"""

import pytest

pytest.importorskip("verl")

import json
import re
from pathlib import Path

import golden
import torch
import torch.nn.functional as F
from host_packages import host_folders
from interpreter import ROOT, python
from reference import grpo_advantages, reference_advantages
from reference_weightings import OF_LITERATURE, reference_weighted
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from cw_plugin.lab.reports.read_records import read_tokens

MODEL = ROOT / "examples" / "cpu" / "model"
QUESTIONS = ["What is 3 + 4?", "Compute 9 - 5.", "Ann has 7 apples and gets 8 more. How many now?", "What is 20 - 6?"]


@pytest.fixture(scope="module")
def swift() -> list[Path]:
    return host_folders("swift")


def start(
    swift: list[Path], out: Path, *flags: str, plugins: tuple[str, ...], processes: int = 1, **environment: str
) -> str:
    """``swift rlhf`` as a user calls it; returns what it printed."""
    data = out / "problems.jsonl"
    problems = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    data.write_text("\n".join(map(json.dumps, problems)))
    program = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    settings = {
        "rlhf_type": "grpo", "dataset": data, "output_dir": out / "run", "add_version": "false",
        "model": MODEL, "model_type": "qwen2", "template": "qwen2_5", "system": "", "torch_dtype": "float32",
        "check_model": "false", "tuner_type": "full", "max_completion_length": 16, "learning_rate": 1e-3,
        "max_steps": 2, "temperature": 1.0, "use_cpu": "true", "logging_steps": 1, "reward_funcs": "of_tokens",
        "save_strategy": "no", "report_to": "none",
    }  # fmt: skip
    given = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    given += ["--external_plugins", *(str(ROOT / plugin) for plugin in plugins)]
    arguments = (*(program if processes > 1 else ()), swift[0] / "swift" / "cli" / "rlhf.py", *given, *flags)
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    result = python(*arguments, path=swift, SWIFT_TEST_OUT=str(out), **environment)
    return result.stdout + result.stderr


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in OF_LITERATURE if name != "steer"]


@pytest.mark.parametrize("weights", ["gaussian", "steer", *OTHERS])
def test_two_processes_that_share_a_group_train_on_its_weights(swift, tmp_path, weights):
    """Eight responses to one problem in a step; each process has two micro-batches of two.

    Truncated responses are left out of the loss, of the statistics and of the record.
    """
    printed = start(
        swift, tmp_path, "--num_generations", "8", "--per_device_train_batch_size", "2",
        "--gradient_accumulation_steps", "2", "--overlong_filter", "true", "--reward_weights", "2",
        plugins=("tests/tools/swift_plugin.py",), processes=2, CW_GRPO_RECORD_EVERY="2", CW_GRPO_WEIGHTS=weights,
    )  # fmt: skip
    # What each process saw at the loss, in the order of the rows.
    files = sorted(tmp_path.glob("*-*.pt"), key=lambda file: [int(part) for part in file.stem.split("-")])
    batches = [batch for batch in map(torch.load, files) if batch["step"] == 0]
    assert [file.stem for file in files] == [f"{rank}-{seen}" for rank in (0, 1) for seen in range(4)], printed[-3000:]
    # Log-probs by plain transformers under the model that training began with.
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    x, h, rewards, masks, found, tokens = [], [], [], [], [], []
    for batch in batches:
        parts = (batch[name] for name in ("ids", "completion_mask", "truncated_mask", "advantages"))
        for ids, mask, cut, advantages in zip(*parts, strict=True):
            there = mask.bool()
            at = torch.arange(len(ids))[-len(mask) :][there]
            start_of_prompt = int((ids != model.config.pad_token_id).nonzero()[0])  # prompts are padded on the left
            with torch.no_grad():
                logits = model(ids[None, start_of_prompt : at[-1] + 1]).logits[0].double()
            log_probs = F.log_softmax(logits, -1)[at - 1 - start_of_prompt]
            x.append(log_probs[range(len(at)), ids[at]])
            h.append(-(log_probs.exp() * log_probs).sum(-1))
            rewards.append(2 * (int(ids[at].sum()) % 17) / 4.0)
            masks.append(torch.full([len(at)], int(not cut)))
            found.append(advantages[there].double())
            tokens += [] if cut else ids[at].tolist()
    a = grpo_advantages(rewards, [0] * 8, 1e-4)
    assert len(set(rewards)) > 1 and 2 <= sum(int(mask[0]) for mask in masks) < 8
    x, h, masks, found = (pad_sequence(rows, batch_first=True) for rows in (x, h, masks, found))
    expected = reference_weighted(weights, x, torch.tensor(a), masks, [0] * 8, h)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    _, groups = reference_advantages(x, a, masks, [0] * 8)
    logged = re.findall(r"'cw_grpo/sigma': '([\d.]+)'", printed)
    assert len(logged) == 2 and float(logged[0]) == pytest.approx(groups[0]["sigma"], rel=1e-3)
    first, second = read_tokens(tmp_path / "run")
    assert (first.step, second.step, first.groups) == (1, 2, 1)
    assert first.table["token_id"].to_pylist() == tokens
    recorded = dict(zip(first.table["row"].to_pylist(), first.table["reward"].to_pylist(), strict=True))
    assert recorded == {row: reward for row, reward in enumerate(rewards) if masks[row][0]}
    (prompt,) = first.prompts.values()
    asked = ids[start_of_prompt : at[0]].tolist()  # the same in every row
    assert prompt == AutoTokenizer.from_pretrained(MODEL).decode(asked, skip_special_tokens=True)
    assert any(question in prompt for question in QUESTIONS)


def test_the_golden_vectors_are_what_ms_swift_trains_on(swift, tmp_path):
    program = (ROOT / "tests" / "tools" / "swift_golden.py", tmp_path)
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = python(*program, path=swift, **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    found, mask = torch.load(tmp_path / "found.pt"), golden.of_tokens("response_mask").bool()
    assert found.keys() == golden.GOLDEN["weightings"].keys()
    for name, advantages in found.items():
        torch.testing.assert_close(advantages[mask].double(), golden.weighted(name)[mask], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_plugin_of_the_examples_trains(swift, tmp_path):
    plugins = ("tests/tools/swift_plugin.py", "examples/swift/plugin.py")
    flags = ["--num_generations", "4", "--per_device_train_batch_size", "8"]
    printed = start(swift, tmp_path, *flags, plugins=plugins)
    assert "'cw_grpo/extreme_gradient_share'" in printed, printed[-3000:]


def test_the_losses_that_lose_the_weights_are_refused_and_no_other(swift):
    """By the gradients of ms-swift's own loss: does a weight multiply that of its token?"""
    result = python(ROOT / "tests" / "tools" / "swift_losses.py", path=swift)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert {setting for setting, (keeps, refused) in found.items() if keeps == refused} == set()
    assert len(found) == 24 and found["grpo token"] == found["cispo sequence"] == [True, False]


def test_what_would_lose_the_weights_is_refused_in_a_sentence_before_the_model_is_loaded(swift):
    code = """
import os
from types import SimpleNamespace
import swift.rlhf_trainers
from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.swift import CWGRPOTrainer

def attempt(**given):
    try:
        CWGRPOTrainer(**given)
    except (CWGRPOError, KeyError) as error:
        print(error)

good = {"importance_sampling_level": "token", "loss_type": "grpo", "use_liger_kernel": False}
for name, value in (("importance_sampling_level", "sequence"), ("loss_type", "real"), ("use_liger_kernel", True)):
    attempt(args=SimpleNamespace(**good | {name: value}))
for name in ("teacher_model", "teacher_model_server", "teacher_use_disable_adapter"):
    attempt(args=SimpleNamespace(**good), **{name: "http://localhost"})
os.environ["CW_GRPO_WEIGHTS"] = "none"
attempt(args=SimpleNamespace(**good | {"loss_type": "real"}))  # which it takes, and misses the next argument
swift.rlhf_trainers.GRPOTrainer = object
attempt()
"""
    said = python("-c", code, path=swift).stdout.splitlines()
    given = (
        "importance_sampling_level='sequence'",
        "'real'",
        "use_liger_kernel",
        "teacher_model ",
        "teacher_model_server ",
        "teacher_use_disable_adapter ",
        "'template'",
        "there is no swift.rlhf_trainers.GRPOTrainer._postprocess_batch",
    )
    for line, setting in zip(said, given, strict=True):
        assert setting in line
    assert said[0].endswith("use sequence_token, which has the same ratio")  # it keeps them: the test above


def test_a_column_with_a_teacher_or_a_changing_number_of_responses_is_refused_alone(swift):
    """In training. And packed rows, which need a GPU, are not recorded. A reward function may leave out a response."""
    code = """
from types import SimpleNamespace
import torch
from unittest.mock import patch
from cw_plugin.errors import OptionsError
from cw_plugin.hosts.swift import CWGRPOTrainer
from cw_plugin.hosts.swift.trainer import _sequences
from cw_plugin.options import Options
of_swift = CWGRPOTrainer.__bases__[-1]
trainer = CWGRPOTrainer.__new__(CWGRPOTrainer)
for training, changes, teacher in ((True, True, None), (True, False, "log-probs"), (False, True, "log-probs")):
    trainer.model, trainer.dynamic_num_samples = SimpleNamespace(training=training), changes
    with patch.object(of_swift, "_postprocess_batch"):
        try:
            parts = [SimpleNamespace(teacher_per_token_logps=of_part) for of_part in (None, teacher)]
            trainer._postprocess_batch([], [{"grpo_batch": part} for part in parts])
        except OptionsError as error:
            print(error)
trainer.accelerator, trainer.args = SimpleNamespace(process_index=0), SimpleNamespace(output_dir="unused")
trainer.num_generations, trainer.overlong_filter, ones = 2, False, torch.ones(2, 3)
trainer._rewards_per_func, trainer.reward_weights = torch.tensor([[1.0, torch.nan], [1.0, 2.0]]), torch.ones(2)
trainer._cw_begin(Options())
rows = SimpleNamespace(completion_mask=ones, advantages=ones, old_per_token_logps=-ones)
for packed in (True, False):
    trainer.template = SimpleNamespace(padding_free=packed, tokenizer=None)
    batch = trainer._cw_batch([{"grpo_batch": rows}])
    print("recorded:", batch.read_sequences is not None, batch.rewards.tolist())
ids, attended = torch.arange(20).view(2, 2, 5), torch.ones(2, 2, 5)
attended[1, 1, 0] = 0
inputs = [{"input_ids": of_ids, "attention_mask": mask} for of_ids, mask in zip(ids, attended)]
sequences = _sequences([{"grpo_batch": rows, "model_inputs": given} for given in inputs], [3, 0])
print([(prompt.tolist(), response.tolist()) for prompt, response in sequences])
"""
    said = python("-c", code, path=swift)
    scheduler, teacher = said.stdout.splitlines()[:2]
    assert "the scheduler changes the number of responses" in scheduler, said.stderr
    assert teacher.endswith("train without the column teacher_prompt"), said.stderr
    recorded = "recorded: False [1.0, 3.0]\nrecorded: True [1.0, 3.0]\n"
    assert said.stdout.endswith(f"{recorded}[([16], [17, 18, 19]), ([0, 1], [2, 3, 4])]\n"), said.stderr


def test_a_teacher_and_sequence_parallelism_are_refused_before_the_first_rollout(swift, tmp_path):
    """By ms-swift's own command line."""
    plugins = ("tests/tools/swift_plugin.py", "examples/swift/plugin.py")
    flags = ("--num_generations", "4", "--per_device_train_batch_size", "4")
    printed = start(swift, tmp_path, *flags, "--teacher_model", str(MODEL), "--tuner_type", "lora", plugins=plugins)
    assert "OptionsError: teacher_" in printed and "gives each token an advantage of its own" in printed
    parallel = ("--sequence_parallel_size", "2", "--gradient_accumulation_steps", "2")
    printed = start(swift, tmp_path, *flags, *parallel, plugins=plugins, processes=2)
    assert "OptionsError: with sequence_parallel_size=2, 2 processes hold the same responses" in printed
    assert not list(tmp_path.glob("*.pt"))


def test_checkpoints_keep_their_method(swift, tmp_path):
    """tests/test_run.py tests the rule; here, that ms-swift's checkpoints are found. Each of its starts has an output
    folder of its own, v0-..., v1-..., and train() is told which checkpoint it resumes."""
    (tmp_path / "v0" / "checkpoint-10").mkdir(parents=True)
    (tmp_path / "v0" / "cw_grpo.json").write_text('{"scope": "group", "weights": "gaussian"}')
    code = f"""
from types import SimpleNamespace
from cw_plugin.errors import OptionsError
from cw_plugin.hosts.swift import CWGRPOTrainer
from cw_plugin.options import Options

def train(self, resumed, trial):
    print("trains", trial)

CWGRPOTrainer.__mro__[2].train = train
for folder, weights, resumed in (("v0", "gaussian", None), ("v0", "none", None), ("v1", "none", None),
                                ("v1", "none", "{tmp_path}/v0/checkpoint-10")):
    trainer = object.__new__(CWGRPOTrainer)
    trainer.args = SimpleNamespace(output_dir="{tmp_path}/" + folder)
    trainer.accelerator, trainer.num_generations = None, 2
    trainer._cw_begin(Options(weights=weights))
    try:
        trainer.train(resumed, "a trial")
    except OptionsError as error:
        print(error)
"""
    result = python("-c", code, path=swift)
    assert result.returncode == 0, result.stderr
    goes_on, refused, elsewhere, resumed = result.stdout.splitlines()
    assert goes_on == elsewhere == "trains a trial"
    assert refused == resumed and "weights='gaussian', and this run has weights='none'" in refused


def test_the_plugin_refuses_megatrons_trainers(swift):
    """Its arguments import the plugin, and then it looks for its trainer in a table of its own."""
    code = (
        "import runpy, sys; sys.modules['swift.megatron.arguments'] = sys; runpy.run_path('examples/swift/plugin.py')"
    )
    result = python("-c", code, path=swift)
    assert "HostError: CW-GRPO is not available for `megatron rlhf`" in result.stderr
    assert (swift[0] / "swift" / "megatron" / "arguments" / "__init__.py").exists()  # so the name is right
