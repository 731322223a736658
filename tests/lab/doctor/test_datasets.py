"""The doctor's checks by verl's own datasets: what they find is what verl does with the same files."""

import pytest

pytest.importorskip("verl")

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
from doctor_runs import REWARD, ROW, changed
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopWorker
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils import hf_tokenizer
from verl.utils.config import omega_conf_to_dataclass

from cw_plugin.lab import doctor
from cw_plugin.lab.doctor import datasets
from cw_plugin.lab.doctor.files import check_files
from cw_plugin.lab.doctor.finding import Finding

LONG = "1+" * 70 + "1="
FILES = ["data.train_files", "data.val_files"]


def write(file: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def asking(file: Path, texts: dict[int, str]) -> Path:
    """A file of twelve rows, some of which ask something else."""
    prompts = [[{"role": "user", "content": texts.get(row, "What is 2+2?")}] for row in range(12)]
    return write(file, [ROW | {"prompt": prompt} for prompt in prompts])


def found(config: DictConfig, *overrides: str) -> list[Finding]:
    checks = {name: doctor.CHECKS[name] for name in ("files", "rows", "datasets")}
    return [finding for _, finding in doctor.examine(changed(config, *overrides), checks)]


def dataset_of(config: DictConfig, file: Path) -> object:
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    return create_rl_dataset(str(file), config.data, model.tokenizer, None)


@pytest.mark.parametrize("setting", FILES)
def test_prompts_that_are_too_long_are_counted(composed, tmp_path, monkeypatch, setting):
    monkeypatch.setattr(datasets, "LONGEST", 3)
    settings = [f"{setting}={asking(tmp_path / 'a.parquet', {8: LONG, 11: LONG})}", "data.truncation=right"]
    messages = [{"role": "user", "content": LONG}]
    tokenizer = hf_tokenizer(composed.actor_rollout_ref.model.path)
    tokens = len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    (finding,) = found(composed, *settings)
    said = f"{setting}: 2 of 12 prompt(s) have more tokens than data.max_prompt_length=128 (row 8 has {tokens},"
    assert said in finding.what
    assert "cuts the beginning, whatever data.truncation=right says" in finding.what and finding.fatal
    verl = SimpleNamespace(rollout_config=SimpleNamespace(prompt_length=128))
    kept = AgentLoopBase._cap_text_prompt_length(verl, list(range(tokens)))
    assert kept == list(range(tokens))[-128:]  # what it is said to do, in verl's agent loop
    assert found(composed, *settings, f"data.max_prompt_length={tokens}") == []
    assert found(composed, *settings, "data.filter_overlong_prompts=True") == []  # which leaves 10, enough for 8
    first = [f"{setting.replace('files', 'max_samples')}=8", "data.shuffle=False"]
    assert found(composed, *settings, *first) == []  # all others are
    assert found(composed, *settings, "data.custom_cls.path=my.py") == []  # which may cut them


def test_a_prompt_of_few_characters_may_be_the_longest(composed, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "LONGEST", 1)
    shorter = dict.fromkeys(range(3), "1" * 99)
    file = asking(tmp_path / "a.parquet", shorter | {8: "\N{GRINNING FACE}" * 60})
    (finding,) = found(composed, f"data.train_files={file}")
    assert "1 or more of 12 prompt(s) have more tokens" in finding.what


def test_a_prompt_is_as_long_as_verls_filter_counts_it(composed, tmp_path):
    """With the tools of a run, and what it gives the chat template."""
    (tmp_path / "tools.py").write_text(
        "from verl.tools.function_tool import function_tool\n@function_tool\n"
        'def of_a_long_name(text: str) -> str:\n    """Doubles it.\n\n    Args:\n        text: what.\n    """\n'
    )
    template = "{{ messages[0].content }}{{ tools | tojson }}{{ hint }}"
    config = changed(
        composed,
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={tmp_path / 'tools.py'}",
        f"actor_rollout_ref.model.custom_chat_template='{template}'",
        "data.apply_chat_template_kwargs.hint=1+1+1+1=",
    )
    tokens = int(re.search(r"row 0 has (\d+)", found(config, "data.max_prompt_length=1")[0].what)[1])
    for limit, left in ((tokens, 12), (tokens - 1, 0)):
        filtered = changed(config, "data.filter_overlong_prompts=True", f"data.max_prompt_length={limit}")
        assert len(dataset_of(filtered, config.data.train_files)) == left


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.train_max_samples=1"], "has 1 row(s) for the run, fewer than a batch of 8"),
        (["data.filter_overlong_prompts=True", "data.train_max_samples=4"], "has 4 row(s) for the run"),  # said once
        (["data.train_batch_size=13", "data.train_max_samples=100"], "has 12 row(s) for the run, fewer than a batch"),
        (["data.gen_batch_size=4", "trainer.total_epochs=1", "trainer.total_training_steps=3"], "after 1 step(s), not"),
        (["trainer.total_epochs=4", "trainer.total_training_steps=5"], "total_epochs=4 ends after 4 step(s), not 5"),
        (["trainer.total_epochs=0"], "total_epochs=0 and total_training_steps=None: verl trains no step"),
        (["trainer.total_training_steps=0", "trainer.use_v1=True"], "total_training_steps=0: verl trains no step"),
        (["trainer.use_v1=False", "data.gen_batch_size=13"], "fewer than a batch of 13"),
        (["data.gen_batch_size=3"], "data.train_batch_size=8 is no multiple of data.gen_batch_size=3"),
        (["trainer.total_epochs=4", "trainer.total_training_steps=4"], None),
        (["trainer.val_only=True", "data.train_max_samples=4"], None),
        (["data.gen_batch_size=3", "trainer.use_v1=False"], None),
        (["data.gen_batch_size=3", "trainer.v1.trainer_mode=colocate_async"], None),
        (["data.gen_batch_size=3", "trainer.v1.sampler.sync_refill_failed_groups=True"], None),
        (["data.gen_batch_size=3", "algorithm.filter_groups.enable=True"], None),
    ],
)
def test_a_run_that_ends_early(composed, settings, said):
    findings = found(composed, *settings)
    assert [finding.fatal and said in finding.what for finding in findings] == ([] if said is None else [True])


def test_a_filter_that_leaves_no_row(composed):
    findings = found(composed, "data.filter_overlong_prompts=True", "data.max_prompt_length=5")
    for finding, said in zip(findings, ("0 row(s) for the run", "none of the 12 row(s) of data.val"), strict=True):
        assert finding.fatal and said in finding.what


def test_a_file_without_rows_is_named_once(composed, tmp_path):
    pq.write_table(pa.Table.from_pylist([ROW])[:0], tmp_path / "a.parquet")
    (finding,) = found(composed, f"data.train_files={tmp_path}/a.parquet")
    assert "has no row" in finding.what


def test_a_run_whose_last_checkpoint_is_there(composed, tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    run = [f"trainer.default_local_dir={tmp_path}", "trainer.total_epochs=5"]
    assert found(composed, *run, "trainer.total_training_steps=4") == []  # verl starts anew without its folder
    (tmp_path / "global_step_4").mkdir()
    assert found(composed, *run) == found(composed, *run, "trainer.total_training_steps=5") == []
    named = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_4"]
    for mode, resumed in (("auto", run), ("resume_path", [*named, "trainer.total_epochs=5"])):
        (finding,) = found(composed, *resumed, "trainer.total_training_steps=4")
        said = f"resume_mode={mode} finds the checkpoint of step 4 of 4: verl resumes it"
        assert said in finding.what and not finding.fatal
    for without in ("trainer.resume_mode=disable", "trainer.use_v1=False"):  # which trains one more step
        assert found(composed, *run, "trainer.total_training_steps=4", without) == []
    (tmp_path / "global_step_4" / "actor").mkdir()
    (tmp_path / "global_step_4" / "actor" / "model_world_size_4_rank_0.pt").touch()
    (of_four,) = check_files(changed(composed, *run))
    assert of_four.fatal and "is a checkpoint of 4 process(es), and this run has 2" in of_four.what
    assert list(check_files(changed(composed, *run, "trainer.nnodes=2"))) == []


@pytest.mark.parametrize("setting", FILES)
@pytest.mark.parametrize(
    "columns",
    [
        ({"extra_info": {"index": 0}}, {"extra_info": {"index": "0"}}),
        ({"reward_model": {"ground_truth": "4"}}, {"reward_model": {"ground_truth": 4}}),
        ({"ability": "math"}, {"ability": 1}),
        ({"difficulty": [1, 2]}, {"difficulty": ["hard"]}),
    ],
)
def test_columns_whose_types_differ_between_files(composed, tmp_path, setting, columns):
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    settings = [f"{setting}=[{files[0]},{files[1]}]"]
    for both, is_wrong in (([columns[0], columns[0]], False), (columns, True)):
        for file, column in zip(files, both, strict=True):
            write(file, [ROW | column] * 8)
        findings = found(composed, *settings)
        assert [finding.what.startswith(f"verl cannot read {setting} as one table") for finding in findings] == (
            [True] * is_wrong
        )
    (column,) = columns[0]  # verl's library names the field, where a column has fields
    field = next(iter(columns[0][column])) if isinstance(columns[0][column], dict) else column
    assert f"the key {field} of features" in findings[0].what


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
@pytest.mark.parametrize(("text", "media"), [("<{0}> and <{0}>", 1), ("<{0}>", 2), ("none", 1)])
def test_rows_whose_media_do_not_fit_their_prompt(composed, tmp_path, monkeypatch, kind, text, media):
    rows = [
        ROW | {"prompt": [{"role": "user", "content": content.format(kind)}], f"{kind}s": [f"a.{kind}"] * number}
        for content, number in [("none", 0)] * 4 + [("<{0}> and <{0}>", 2)] * 4 + [(text, media)]
    ]
    file = write(tmp_path / "a.parquet", rows)
    settings = [f"{setting}={file}" for setting in FILES]
    for setting, finding in zip(FILES, found(composed, *settings), strict=True):  # the model takes text alone
        assert f"{setting}: verl cannot use 5 of 9 row(s), first row 4: processor is needed" in finding.what
    elsewhere = "actor_rollout_ref.model.path=hdfs://host/model"
    findings = found(composed, *settings, elsewhere)
    assert ["1 of 9 row(s), first row 8" in finding.what for finding in findings] == [True, True]
    # Until it renders a prompt, verl only asks whether there is a processor.
    model = SimpleNamespace(tokenizer=hf_tokenizer(composed.actor_rollout_ref.model.path), processor=object())
    monkeypatch.setattr(doctor.datasets, "_model", lambda _: model)
    for setting, finding in zip(FILES, found(composed, *settings), strict=True):
        assert f"{setting}: verl cannot use 1 of 9 row(s), first row 8: {kind}_offset" in finding.what
        assert f"as the row has in {kind}s" in finding.fix
    dataset = create_rl_dataset(str(file), composed.data, model.tokenizer, model.processor)
    assert [dataset[row]["index"] for row in range(8)] == [0] * 8
    with pytest.raises(AssertionError, match=f"{kind}_offset"):
        dataset[8]


def test_a_prompt_with_media_is_as_long_as_its_processor_makes_it(composed, tmp_path, monkeypatch):
    """Of a processor that stands in for a model's, none of which is here."""

    class Processor:
        def apply_chat_template(self, messages, **_) -> str:
            return messages[0]["content"][0]["type"]

        def __call__(self, text, audio, **_) -> dict[str, list[list[int]]]:
            assert (text, audio) == (["audio"], ["a.wav"])
            return {"input_ids": [[0] * 200]}

    rows = [ROW | {"prompt": [{"role": "user", "content": "<audio>"}], "audios": ["a.wav"]}] * 8
    model = SimpleNamespace(tokenizer=hf_tokenizer(composed.actor_rollout_ref.model.path), processor=Processor())
    monkeypatch.setattr(doctor.datasets, "_model", lambda _: model)
    file = write(tmp_path / "a.parquet", rows)
    for setting, finding in zip(FILES, found(composed, *(f"{name}={file}" for name in FILES)), strict=True):
        assert f"{setting}: 8 of 8 prompt(s) have more tokens" in finding.what and "row 0 has 200" in finding.what


def test_placeholders_without_media(composed, tmp_path):
    """They do not hide prompts that are too long."""
    file = asking(tmp_path / "a.parquet", {9: "<image>" + LONG, 11: "<image>"})
    long, note = sorted(found(composed, f"data.train_files={file}"), key=lambda finding: not finding.fatal)
    assert "1 of 12 prompt(s) have more tokens" in long.what and long.fatal
    assert "has <image> in 2 prompt(s), first row 9, and nothing for it in the column images" in note.what
    assert not note.fatal
    rows = [ROW | {"images": []}] * 7 + [ROW | {"images": [], "prompt": [{"role": "user", "content": "<image>"}]}]
    (note,) = found(composed, f"data.train_files={write(file, rows)}")
    assert "has <image> in 1 prompt(s), first row 7, and nothing for it in the column images" in note.what


def test_a_pattern_names_files_as_for_verl(composed, tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.parquet", [ROW] * 8)
    pattern = f"{tmp_path}/*.parquet"
    assert found(composed, f"data.train_files={pattern}") == []
    assert len(dataset_of(composed, Path(pattern))) == 16
    write(tmp_path / "c.parquet", [ROW | {"prompt": [{"role": "user", "content": LONG}]}] * 8)
    (finding,) = found(composed, f"data.train_files={pattern}")
    assert "8 of 24 prompt(s) have more tokens" in finding.what
    (finding,) = found(composed, f"data.train_files={tmp_path}/*.jsonl")
    assert "*.jsonl does not exist" in finding.what


def test_columns_of_names_that_verl_uses_itself(composed, tmp_path):
    """Each column is an argument of these functions of verl, beside their own."""
    functions = [AgentLoopWorker._run_agent_loop, AgentLoopWorker._agent_loop_postprocess]
    own = {name for function in functions for name in inspect.signature(function).parameters}
    own -= {"self", "kwargs", "agent_name", "_ray_trace_ctx"}  # the last one is Ray's, once the class is an actor
    for name in own | {"session_id", "responses", "prompts"}:
        file = write(tmp_path / "a.parquet", [ROW | {name: "a"}] * 8)
        (finding,) = found(composed, f"data.train_files={file}")
        assert f"has the column(s) {name}, names that verl's agent loop uses itself" in finding.what and finding.fatal


@pytest.mark.parametrize("filtered", [False, True])
def test_prompts_that_the_template_refuses_or_makes_empty(composed, tmp_path, filtered):
    system = [{"role": "system", "content": "Think."}]
    file = write(tmp_path / "a.parquet", [ROW] * 8 + [ROW | {"prompt": system}] * 4)
    template = '{% if messages[0].role == "system" %}{{ raise_exception("no system") }}{% endif %}{{ 1 }}'
    settings = [f"data.train_files={file}", f"data.filter_overlong_prompts={filtered}"]
    refusing = f"actor_rollout_ref.model.custom_chat_template='{template}'"
    (finding,) = found(composed, *settings, refusing)
    said = f"cannot render 4 prompt(s), first row 8, and {'its filter drops such rows' if filtered else 'it fails'}"
    assert said in finding.what and "no system" in finding.what and finding.fatal
    if filtered:
        config = changed(composed, *settings, refusing)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        model.tokenizer.chat_template = template
        assert len(create_rl_dataset(str(file), config.data, model.tokenizer, None)) == 8
    for finding in found(composed, *settings, "actor_rollout_ref.model.custom_chat_template='{{ 1[:0] }}'"):
        assert "the tokenizer makes no token of a prompt" in finding.what and finding.fatal


def test_sources_that_verls_own_rewards_do_not_know(composed, tmp_path):
    """Where they are used. Those that verl knows are not named, and verl reads them whatever reward_fn_key says."""
    file = write(tmp_path / "a.parquet", [ROW] * 8)
    settings = [f"{REWARD}.path=null", *(f"{setting}={file}" for setting in FILES)]
    (finding, _) = found(composed, *settings, "data.reward_fn_key=x")
    assert "data_source=my/data, which verl's own rewards do not know" in finding.what and finding.fatal
    assert "pkg://cw_plugin.lab.rewards" in finding.fix
    for other in ("reward_model.enable=True", "reward_manager.source=importlib"):
        assert found(composed, *settings, f"reward.{other}") == []
    write(file, [ROW | {"data_source": name} for name in 4 * ["openai/gsm8k", "hiyouga/geometry3k"]])
    assert found(composed, *settings) == []


def test_an_agent_loop_in_a_row_that_verl_does_not_have(composed, tmp_path):
    file = write(tmp_path / "a.parquet", [ROW | {"agent_name": "tool_agent"}] * 8)
    assert found(composed, f"data.train_files={file}") == []
    write(file, [ROW | {"agent_name": "my_agent"}] * 8)
    (finding,) = found(composed, f"data.train_files={file}")
    assert "agent_name=my_agent" in finding.what
    (tmp_path / "mine.yaml").write_text("- name: my_agent\n")
    mine = f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tmp_path / 'mine.yaml'}"
    assert found(composed, f"data.train_files={file}", mine) == []


def test_a_home_folder_is_not_expanded(composed, tmp_path, monkeypatch):
    """As verl's dataset does not; `cw-grpo prepare` writes to such a folder by default."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "data" / "cw_grpo" / "open_rs" / "train.parquet"
    file.parent.mkdir(parents=True)
    write(file, [ROW] * 8)
    (finding,) = found(composed, "data.train_files=~/data/cw_grpo/open_rs/train.parquet")
    assert "~/data/cw_grpo/open_rs/train.parquet does not exist" in finding.what and str(file) in finding.fix
    with pytest.raises(FileNotFoundError):
        dataset_of(composed, Path("~/data/cw_grpo/open_rs/train.parquet"))
    assert found(composed, f"data.train_files={file}") == []
