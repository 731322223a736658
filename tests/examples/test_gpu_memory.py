"""examples/gpu/memory: the rows of its page, and what verl's engines hold."""

import pytest

pytest.importorskip("verl")

import re
import sys

from engines import ENGINES, PROMPT, RESPONSE, make_batch, make_model, run_steps
from interpreter import ROOT, bash
from omegaconf import OmegaConf

sys.path.append(str(ROOT / "examples" / "gpu" / "memory"))
import megatron_engine
import tracked
from estimate import GIB, ROOM, SOLD_AS, estimate, vllm_needs
from shapes import parameter_shapes, read_shape

pytestmark = pytest.mark.slow

RECIPES = {
    "1.5B FSDP2": "run_r1_distill_qwen_1_5b_fsdp.sh",
    "7B FSDP2": "run_qwen2_5_math_7b_fsdp.sh",
    "1.5B Megatron": "run_r1_distill_qwen_1_5b_megatron.sh",
    "7B Megatron": "run_qwen2_5_math_7b_megatron.sh",
}
PARAMETERS = {"1.5B": 1_777_088_000, "7B": 7_615_616_512}  # of the checkpoints on the hub


def cells(recipe: str, table: str) -> list[str]:
    """A recipe's row in the table of the page that begins so, without its name."""
    page = (ROOT / "examples" / "gpu" / "README.md").read_text()
    rows = page[page.index(table) :].split("\n\n")[0].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {recipe} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def needs_and_fits(gpu: int, script: str, *overrides: str, **variables: str):
    """What the script's run needs, and whether each stage leaves a tenth of a GPU of ``gpu`` GB free."""
    config = OmegaConf.create(bash(script, *overrides, DRY_RUN="1", **variables).stdout)
    needs = estimate(config, SOLD_AS[gpu])
    answers = vllm_needs(config, read_shape(config.actor_rollout_ref.model.path), needs.parameters)
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * SOLD_AS[gpu] * GIB
    return needs, needs.largest.total <= ROOM * SOLD_AS[gpu] * GIB and answers <= share


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_needs_what_the_page_says(name):
    *stages, _, _, _, host, checkpoint = cells(name, "| recipe | vLLM awake |")
    needs, fits = needs_and_fits(80, RECIPES[name])
    assert fits and [f"{stage.total / GIB:.1f}" for stage in needs.stages] == stages
    assert (f"{needs.host / GIB:.0f} GiB", f"{needs.checkpoint / 1e9:.0f} GB") == (host, checkpoint)
    assert needs.parameters == PARAMETERS[name.split()[0]]


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_page_adds_for_48_gb_makes_a_recipe_fit(name):
    (text,) = cells(name, "| recipe | add |")
    overrides = re.findall(r"[a-z_]+\.[\w.]+=\w+", text)
    assert needs_and_fits(48, RECIPES[name], *overrides, **dict(re.findall(r"\b([A-Z_]+)=([\d.]+)", text)))[1]
    assert needs_and_fits(48, RECIPES[name])[1] == (text == "nothing")


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """The bytes that rank 0 of two holds: of weights, gradients and optimizer, by model and engine."""
    folder = tmp_path_factory.mktemp("models")
    wide = {"hidden_size": 256, "intermediate_size": 512}
    models = {"wide": make_model(folder / "wide", **wide)}
    models["tied"] = make_model(folder / "tied", **wide, tie_word_embeddings=True)  # mbridge reads no other after it
    engines = [engine for engine in ENGINES if engine != "megatron tp"]  # which has float32
    pairs = [(model, engine) for model in models for engine in engines]
    steps = [(models[model], ENGINES[engine]) for model, engine in pairs]
    outputs = run_steps(tmp_path_factory.mktemp("steps"), make_batch(models["wide"]), *steps)
    return models, {pair: output["held"] for pair, output in zip(pairs, outputs, strict=True)}


@pytest.mark.parametrize("engine", ["fsdp2", "megatron half", "megatron half tp", "megatron half pp"])
@pytest.mark.parametrize("model", ["wide", "tied"])
def test_the_calculated_memory_is_what_the_engine_holds(model, engine, held):
    """Megatron also pads each parameter to 64 elements."""
    models, of_engines = held
    shape = read_shape(str(models[model]))
    if engine == "fsdp2":
        calculated = tracked.fsdp2_training(shape, ranks=2, tokens=PROMPT + RESPONSE, recompute=True)
    else:
        tp, pp = (ENGINES[engine].get(name, 1) for name in ("tp", "pp"))
        parallel = megatron_engine.Parallel(tp=tp, pp=pp, dp=2 // (tp * pp))
        parameters = megatron_engine.parameters_of(parameter_shapes(shape), parallel, 0)
        calculated = megatron_engine.static(parameters, parallel)
    assert set(of_engines[model, engine]) == {"weights", "gradients", "optimizer"}
    for name, size in of_engines[model, engine].items():
        assert calculated[name] == pytest.approx(size, rel=0.01), name
