"""cw-grpo memory for OpenRLHF's recipe, and DeepSpeed's engine. test_trl_examples.py has TRL's recipe, test_openrlhf.py
OpenRLHF's forward pass, and test_memory.py verl's recipes."""

import json
from math import prod

import pytest
from gpu_page import cells, totals
from interpreter import ROOT, bash, cli, python
from transformers import AutoModelForCausalLM, Qwen2Config

from cw_plugin.errors import OptionsError
from cw_plugin.memory import openrlhf
from cw_plugin.memory.deepspeed import BUCKET, HALF, Zero
from cw_plugin.memory.models import parameter_count, parameter_shapes, read_shape
from cw_plugin.memory.stages import GIB, SOLD_AS, Estimate

PAPER = ROOT / "examples" / "openrlhf" / "paper.sh"
SMALL = ROOT / "examples" / "cpu" / "model"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_holds_what_is_calculated(stage, packages, tmp_path):
    """On rank 0 of two, between two micro-batches. In ZeRO-2, both keep the gradient of a parameter that they share."""
    shape = Qwen2Config.from_pretrained(SMALL, num_hidden_layers=4, layer_types=["full_attention"] * 4)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "model")
    deepspeed = packages("deepspeed==0.19.6", "hjson", "py-cpuinfo", "pylatexenc", DS_BUILD_OPS="0")
    program = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    arguments = (ROOT / "tests" / "tools" / "zero_engine.py", stage, tmp_path / "model", tmp_path / "held")
    result = python(*program, *arguments, path=(deepspeed,), DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr[-3000:]

    held = json.loads((tmp_path / "held").read_text())
    sizes = [prod(size) for size in parameter_shapes(shape).values()]
    zero = Zero(stage, 2, sum(sizes))
    assert zero.weights == held["weights"]
    assert zero.optimizer == pytest.approx(held["optimizer"], rel=1e-5)  # Adam also counts its steps
    assert zero.gradients <= held["gradients"] < zero.gradients + HALF * max(sizes)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A shape of which logits take most."""
    folder = tmp_path_factory.mktemp("model")
    Qwen2Config.from_pretrained(SMALL, vocab_size=20000).save_pretrained(folder)
    return str(folder)


def estimate(model: str, *arguments: str) -> Estimate:
    printed = bash("openrlhf/paper.sh", *arguments, DRY_RUN="1", MODEL_PATH=model, MAX_RESPONSE="512").stdout
    return openrlhf.estimate(printed, SOLD_AS[80])


def test_overrides_of_openrlhfs_recipe_count(model):
    shape = read_shape(model)
    size = parameter_count(shape)
    needs = estimate(model)
    awake, log_probs, training = (stage.parts for stage in needs.stages)
    assert (training["weights"], training["reference"], awake["vLLM"]) == (2 * size, 2 * size, 0.6 * SOLD_AS[80] * GIB)
    assert (training["gradients"], training["optimizer"]) == (2 * size / 4, 12 * size / 4)
    assert awake["optimizer"] == 0 and needs.host == 12 * size and needs.checkpoints == 4
    logits = 4 * 4 * 1024 * shape.vocab_size  # of a micro-batch of four, in float32
    assert log_probs["activations"] == pytest.approx(1.5 * logits, rel=0.05)  # and in bfloat16, until that is freed
    assert training["activations"] - HALF * BUCKET == pytest.approx(3 * logits, rel=0.05)  # and two gradients

    other = estimate(model, "--train.micro_batch_size", "2", "--rollout.temperature", "1")
    assert other.stages[2].parts["activations"] - HALF * BUCKET == pytest.approx(2.5 * logits / 2, rel=0.1)
    other = estimate(model, "--actor.num_gpus_per_node", "2", "--ds.zero_stage", "3", "--algo.kl.init_coef", "0")
    parts = other.stages[2].parts
    assert (parts["weights"], parts["reference"], parts["optimizer"]) == (size, 0, 6 * size)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ds.zero_stage", "1"], "the memory of ZeRO-1 is not calculated; use ZeRO-2 or ZeRO-3"),
        (["--ds.lora.rank", "8"], "the memory of --ds.lora.rank 8 is not calculated; use 0"),
        (["--ds.adam_offload"], "the memory of --ds.adam_offload is not calculated; leave it out"),
    ],
)
def test_what_is_not_calculated_is_refused(model, arguments, said):
    with pytest.raises(OptionsError, match=said):
        estimate(model, *arguments)
    assert "is not calculated; give a recipe of verl" in cli("memory", ROOT / "examples" / "skyrl" / "paper.sh").stderr


@pytest.mark.slow
def test_openrlhfs_recipe_needs_what_the_page_says():
    needs = openrlhf.estimate(bash("openrlhf/paper.sh", DRY_RUN="1").stdout, SOLD_AS[80])
    assert totals(needs) == cells("1.5B OpenRLHF")[:3]
    result = cli("memory", "--gpu", "48", PAPER)
    assert result.exit_code == 1 and "fix: a smaller --train.micro_batch_size" in result.stdout
    assert cli("memory", "--gpu", "48", PAPER, "--train.micro_batch_size", "2").exit_code == 0
