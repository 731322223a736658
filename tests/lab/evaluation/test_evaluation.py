"""What is asked, kept and refused. A calculator takes main_ppo's place; test_e2e.py has the real one."""

import pytest

pytest.importorskip("verl")

import json
import os
import re
import runpy
import shutil
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
from interpreter import ROOT, cli
from omegaconf import OmegaConf
from trainers import composed
from transformers import AutoTokenizer
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.lab.configs import differences
from cw_plugin.lab.evaluation import ask, verl_plugin  # noqa: F401  as verl imports it
from cw_plugin.lab.evaluation.graded_answers import MACHINE, read_answers, read_asked_with
from cw_plugin.lab.evaluation.models import find_models

MODEL = ROOT / "examples" / "cpu" / "model"
LENGTHS = ["data.max_prompt_length=64", "data.max_response_length=64"]
SAMPLING = "actor_rollout_ref.rollout.val_kwargs"


@pytest.fixture
def calculator(monkeypatch):
    """The starts of verl, each as the benchmarks that were asked. ``left_out`` answers to each are missing.
    ``fails_at`` names a benchmark at which it is killed."""
    monkeypatch.setattr(calculate, "starts", [], raising=False)
    monkeypatch.setattr(calculate, "left_out", 0, raising=False)
    monkeypatch.setattr(calculate, "fails_at", None, raising=False)
    monkeypatch.setattr(ask, "run_module", calculate)
    monkeypatch.setattr(ask, "compose", lambda overrides: composed(*overrides))  # hydra takes a second for it
    monkeypatch.setattr(PPOTrainerSync, "_validate", validate)
    for name in ("_init_dataloader", "_shutdown_dump_executor", "_init_dump_executor"):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self: None)
    return calculate


def calculate(module, _, folder, __, name, log):
    """main_ppo without Ray and workers: the trainer that it would construct validates."""
    assert Path(folder).is_absolute()  # hydra looks for another one beside main_ppo
    config = OmegaConf.load(Path(folder) / f"{name}.yaml")
    calculate.starts.append([])
    trainer = object.__new__(get_trainer_cls(config.trainer.v1.trainer_mode))
    trainer.config = config
    calculate.metrics = trainer._validate()


def validate(trainer):
    """In place of verl's: dumps right answers, as verl does."""
    config = trainer.config
    benchmark = Path(config.trainer.validation_data_dir).name
    calculate.starts[-1].append(benchmark)
    if benchmark == calculate.fails_at:
        raise HostError("main_ppo fails")
    dump = []
    for row in pq.read_table(config.data.val_files).to_pylist() * config.actor_rollout_ref.rollout.val_kwargs.n:
        text, gold = row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]
        output = str(sum(int(number) for number in re.findall(r"\d+", text))) + "\u2028"
        acc = float(output.strip() == gold)
        dump.append({"input": text, "output": output, "gts": gold, "score": acc, "acc": acc})
    lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in dump[calculate.left_out :]]
    Path(config.trainer.validation_data_dir).mkdir()
    Path(config.trainer.validation_data_dir, "0.jsonl").write_text("".join(lines))
    return {"acc": config.data.val_files}


def sums(folder: Path, *, system: str = "Think.", name: str = "sums", **changes) -> None:
    """Three questions; the answer of the last one is wrong."""
    rows = []
    for question, gold in {"What is 9 + 14?": "23", "What is 2 + 2?": "4", "What is 3 + 4?": "8"}.items():
        prompt = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        truth = {"style": "rule", "ground_truth": gold}
        rows.append({"data_source": "knoveleng/AMC-23", "prompt": prompt, "reward_model": truth} | changes)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def run(folder: Path, *overrides: str, names=("sums",), model=MODEL, out="out") -> None:
    files = {name: Path(shutil.copy(folder / "sums.parquet", folder / f"of-{name}.parquet")) for name in names}
    ask.evaluate(find_models([str(model)]), files, folder / out, [*LENGTHS, *overrides])


def test_answers_are_verls_and_are_not_asked_again(calculator, tmp_path, capsys, monkeypatch):
    sums(tmp_path)
    load = Mock(wraps=AutoTokenizer.from_pretrained)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", load)
    run(tmp_path, f"{SAMPLING}.n=2", names=["one", "two"])
    assert load.call_count == 1  # for both benchmarks
    assert calculator.metrics == {f"{name}/acc": str(tmp_path / f"of-{name}.parquet") for name in ("one", "two")}
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "model: one pass@1 66.67% of 6 answers"
    (one, _), notes = read_answers(tmp_path / "out")
    assert (one.model, one.step, one.benchmark, notes) == ("model", None, "one", [])
    assert list(one.grades.values()) == [[1, 1], [1, 1], [0, 0]]
    assert one.settings["evaluation.checkpoint"] == str(MODEL)
    machine = ["trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3", "trainer.nnodes=2",
               "actor_rollout_ref.rollout.tensor_model_parallel_size=2", "reward.num_workers=1",
               "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
               "actor_rollout_ref.rollout.enforce_eager=True", "actor_rollout_ref.rollout.max_num_seqs=8",
               "actor_rollout_ref.rollout.free_cache_engine=False", "actor_rollout_ref.rollout.nnodes=2",
               "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3", "global_profiler.tool=torch",
               "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=9", "ray_kwargs.ray_init.num_cpus=3",
               "actor_rollout_ref.actor.fsdp_config.param_offload=False", "actor_rollout_ref.actor.use_torch_compile=0",
               "actor_rollout_ref.actor.fsdp_config.fsdp_size=2"]  # fmt: skip
    run(tmp_path, f"{SAMPLING}.n=2", *machine, names=["one", "two", "three"])
    assert calculator.starts == [["one", "two"], ["three"]]
    assert capsys.readouterr().out.splitlines()[1:3] == said[1:]
    monkeypatch.chdir(tmp_path)
    run(Path(), names=["single"])  # another benchmark may have another number of answers
    command = ["evaluate", MODEL, "--out", tmp_path / "out", "--benchmarks"]
    asked = {name: f"{name}={tmp_path / 'sums.parquet'}" for name in ("one", "single")}
    said = cli(*command, asked["one"], "--", *LENGTHS, f"{SAMPLING}.n=2").stdout  # of what was asked
    assert "that at least one of k answers solves" in said and "Questions solved by many answers" in said
    assert "solves" not in cli(*command, asked["single"], "--", *LENGTHS).stdout
    files = {path.name for path in (tmp_path / "out" / "model").iterdir()}
    names = [name for start in calculator.starts for name in start]
    assert files == {f"{name}.{kind}" for name in names for kind in ("jsonl", "yaml")}


def test_answers_under_other_settings_are_refused(calculator, tmp_path):
    """Every setting counts; these are easily forgotten."""
    sums(tmp_path)
    run(tmp_path)
    with pytest.raises(OptionsError, match=rf"sums.jsonl was asked with {SAMPLING}.top_k=-1, and now it is 5; use the"):
        run(tmp_path, f"{SAMPLING}.top_k=5")
    overrides = [
        f"{SAMPLING}.n=2", f"{SAMPLING}.temperature=1", f"{SAMPLING}.top_k=5", f"{SAMPLING}.do_sample=False",
        "data.max_response_length=63", "actor_rollout_ref.rollout.seed=7", "actor_rollout_ref.rollout.quantization=fp8",
        "actor_rollout_ref.model.lora_adapter_path=/adapter", "actor_rollout_ref.rollout.load_format=safetensors",
        "actor_rollout_ref.rollout.dtype=float32", "+actor_rollout_ref.model.override_config.rope_theta=5000",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.rope_theta=5000",
        "+data.apply_chat_template_kwargs.enable_thinking=False", "actor_rollout_ref.model.custom_chat_template=hello",
        "reward.custom_reward_function.path=reward.py", "reward.custom_reward_function.name=other",
    ]  # fmt: skip
    run(tmp_path, *overrides, out="other")
    of_both = (read_asked_with(tmp_path / out / "model" / "sums.yaml") for out in ("out", "other"))
    found = {key: str(now) for key, (_, now) in differences(*of_both, MACHINE).items()}
    wanted = dict(override.lstrip("+").split("=") for override in overrides)
    assert {key: found.get(key) for key in wanted} == wanted and found["evaluation.samples"] == "2"


def test_answers_to_other_questions_or_by_other_weights_are_refused(calculator, tmp_path):
    model = Path(shutil.copytree(MODEL, tmp_path / "model"))
    sums(tmp_path)
    run(tmp_path, model=model)
    for key, change in (  # which stay: that which is compared first is named
        ("questions", lambda: sums(tmp_path, system="Think twice.")),
        ("questions", lambda: sums(tmp_path, reward_model={"style": "rule", "ground_truth": "7"})),
        ("weights", lambda: os.utime(model / "model.safetensors")),  # trained again, under the same name
    ):
        change()
        with pytest.raises(OptionsError, match=f"was asked with evaluation.{key}="):
            run(tmp_path, model=model)


def test_a_prompt_may_be_as_long_as_the_limit(calculator, tmp_path):
    sums(tmp_path)
    with pytest.raises(OptionsError, match=r"has a prompt of \d+ tokens") as refused:
        run(tmp_path, "data.max_prompt_length=9")
    run(tmp_path, f"data.max_prompt_length={re.findall(r'prompt of (.+) tokens', str(refused.value))[0]}")


def test_a_kill_loses_the_benchmark_at_hand_alone(calculator, tmp_path):
    """Or an answer that verl does not grade."""
    sums(tmp_path)
    names = ["one", "two", "three"]
    calculator.fails_at = "two"
    with pytest.raises(HostError, match="main_ppo fails"):
        run(tmp_path, names=names)
    answers, notes = read_answers(tmp_path / "out")
    assert [each.benchmark for each in answers] == ["one"]
    assert [note.split(":")[0] for note in notes] == ["model is not finished on three", "model is not finished on two"]
    calculator.fails_at, calculator.left_out = None, 1
    with pytest.raises(HostError, match=r"verl graded 2 of 3 answers to two; see .*verl.log, and start"):
        run(tmp_path, names=names)
    calculator.left_out = 0
    run(tmp_path, names=names)
    assert calculator.starts == [["one", "two"], ["two", "three"], ["two", "three"]]
    assert read_answers(tmp_path / "out")[1] == []


@pytest.mark.parametrize(
    ("arguments", "overrides", "message"),
    [
        ("", ["trainer.nnodes=1"], "name a model, .*given are 0 models, and sums"),
        ("MODEL trainer.nnodes=1", [], "'trainer.nnodes' stands among the models, .*write overrides after --"),
        ("MODEL model_engine=megatron", [], "'model_engine' stands among the models"),
        ("MODEL ~trainer.logger", [], "'~trainer.logger' stands among the models"),
        ("MODEL +a.b=c/d", LENGTHS, "the tokenizer of c/d cannot be loaded .*, or write overrides of verl after --"),
        ("MODEL --benchmarks=", [], "name a model, .*given are 1 models, and no benchmark"),
        ("MODEL --benchmarks sums@4={tmp}/sums.parquet", [], "NAME=FILE.parquet; given are .*sums@4"),
        ("{tmp}/nothing", LENGTHS, "the tokenizer of .*/nothing cannot be loaded"),
        ("MODEL {tmp}/other/model", LENGTHS, "two models are called model, and .*; use NAME=FOLDER"),
        ("{tmp}/run", [], "run holds no model .*, and no checkpoint"),
        ("MODEL --benchmarks aime24", [], "/aime24/test.parquet cannot be read .it does not exist.; run cw-grpo"),
        ("MODEL --benchmarks s={tmp}/string.parquet", [], "string.parquet has no row, or one without a prompt in m"),
        ("MODEL --benchmarks s={tmp}/null.parquet", [], "null.parquet has no row, or one without a prompt in messages"),
        ("MODEL --benchmarks s={tmp}/empty.parquet", [], "empty.parquet has no row, or one without a prompt in m"),
        ("{tmp}/no-system", LENGTHS, "cannot render the prompts of sums .*no system turn"),
        ("MODEL", ["data.max_prompt_length=9"], "sums has a prompt of .* tokens; raise data.max_prompt_length=9"),
        ("MODEL", ["data.max_prompt_length=9", "actor_rollout_ref.model.tokenizer_path=/no"], "tokenizer of /no can"),
        ("MODEL", ["data.max_prompt_length=9", "actor_rollout_ref.model.custom_chat_template='{{x.y}}'"], "not render"),
        ("MODEL", ["trainr.nnodes=1"], "verl has no setting trainr.nnodes"),
        ("MODEL", ["trainer.use_v1=False"], "trainer.use_v1=False cannot ask several benchmarks in one start; leave"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path, arguments, overrides, message):
    (tmp_path / "run" / "global_step_5").mkdir(parents=True)
    shutil.copytree(MODEL, tmp_path / "other" / "model")
    sums(tmp_path)
    sums(tmp_path, name="string", prompt="What is 9 + 14?")
    pq.write_table(pq.read_table(tmp_path / "sums.parquet").slice(0, 0), tmp_path / "empty.parquet")
    pq.write_table(pa.table({"prompt": [[{"role": "user", "content": "?"}], None]}), tmp_path / "null.parquet")
    shutil.copytree(MODEL, tmp_path / "no-system")
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    (tmp_path / "no-system" / "chat_template.jinja").write_text(template)
    options = {"--out": tmp_path / "out", "--data-dir": "~", "--benchmarks": f"sums={tmp_path / 'sums.parquet'}"}
    words = arguments.replace("{tmp}", str(tmp_path)).replace("MODEL", str(MODEL)).split()
    before = [word for option in options.items() for word in option]  # the last of an option counts
    result = cli("evaluate", *before, *words, "--", *overrides, HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and re.search(message, result.stderr)
    assert len(result.stderr.splitlines()) == 1 and not list(tmp_path.glob("out/*/*.jsonl"))


def test_main_ppo_reads_the_configuration(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a name with = and 'quotes'"
    folder.mkdir()
    sums(folder)

    def print_it(module, *words, log):
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", [module, *words, "--cfg", "job"])
        runpy.run_module(module, run_name="__main__")
        raise HostError("stopped")

    monkeypatch.setattr(ask, "run_module", print_it)
    load = Mock(wraps=AutoTokenizer.from_pretrained)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", load)
    template = "actor_rollout_ref.model.custom_chat_template='{{hint[0]}}{{messages[1].content}}'"
    for_it = ["+data.apply_chat_template_kwargs.hint=x", "actor_rollout_ref.model.trust_remote_code=True"]
    with pytest.raises(HostError, match="stopped"):
        run(folder, f"{SAMPLING}.top_k=20", "trainer.n_gpus_per_node=8", "trainer.nnodes=2", template, *for_it)
    assert load.call_args.kwargs == {"trust_remote_code": True}
    read = OmegaConf.create(capsys.readouterr().out)
    assert read.evaluation.benchmarks.sums.answers == 3 and read.trainer.v1.trainer_mode == "cw_grpo_evaluation"
    assert read.trainer.val_only and read.actor_rollout_ref.model.path == str(MODEL)
    of_open_rs = {"temperature": 0.6, "top_p": 0.95, "do_sample": True}
    assert read.actor_rollout_ref.rollout.val_kwargs.items() >= (of_open_rs | {"top_k": 20}).items()
    lengths = OmegaConf.from_dotlist(ask.VALIDATION).data
    assert lengths.max_prompt_length + lengths.max_response_length == 32_768  # max_model_length of open-rs
    assert read.data.max_response_length == 64 and read.actor_rollout_ref.rollout.max_model_len == 128
    assert read.actor_rollout_ref.model.custom_chat_template == "{{hint[0]}}{{messages[1].content}}"
    assert read.data.train_batch_size == len(read.data.train_files) == 16
    assert read.trainer.validation_data_dir.startswith(str(folder))
