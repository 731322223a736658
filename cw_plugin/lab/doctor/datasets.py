"""The checks by verl's own datasets and the model's own tokenizer: of what verl says late about rows, or never."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.files import is_remote
from cw_plugin.lab.configs import listed
from cw_plugin.lab.doctor.files import DATA, READ_BY_VERL, data_files, is_empty, is_missing_folder
from cw_plugin.lab.doctor.finding import Finding, error_of, said
from cw_plugin.lab.doctor.names import agent_loops
from cw_plugin.lab.doctor.steps import check_steps

if TYPE_CHECKING:
    from verl.utils.dataset.rl_dataset import RLHFDataset

# Of AgentLoopWorker: arguments, and what it writes beside a response.
_TAKEN = {"output", "validate", "sampling_params", "trajectory", "trace", "session_id", "responses", "prompts"}
LONGEST = 500  # rows that are rendered, those of the most bytes first; 7,000 would take 3 CPU seconds


def check_datasets(config: DictConfig) -> Iterator[Finding]:
    """What verl's dataset cannot read, and prompts that do not fit; none if a class of the user's own reads the files.

    Without the model's tokenizer, no prompt is rendered.
    """
    if OmegaConf.select(config, "data.custom_cls.path"):
        return
    model = None
    try:
        model = _model(config)
    except Exception as error:  # of code of the model's own, too
        problem = f"verl cannot load the model's configuration or tokenizer: {said(error.__cause__ or error)}"
        yield Finding(problem, "correct actor_rollout_ref.model.path, tokenizer_path or hf_config_path")
    for setting in DATA:
        named = listed(OmegaConf.select(config, setting))
        files = [file.path for file in data_files(config) if file.setting == setting]
        are_readable = all(file.is_file() and file.suffix in READ_BY_VERL and not is_empty(file) for file in files)
        if named and are_readable and not any(map(is_remote, named)):
            yield from _check_dataset(config, setting, model)


def _model(config: DictConfig) -> Any:
    """Verl's HFModelConfig, with tokenizer and processor; None where they are not on this machine."""
    from verl.utils.config import omega_conf_to_dataclass

    path = config.actor_rollout_ref.model.path
    if is_missing_folder(path) or is_remote(path):
        return None
    return omega_conf_to_dataclass(config.actor_rollout_ref.model)


def _check_dataset(config: DictConfig, setting: str, model: Any) -> Iterator[Finding]:
    from datasets.exceptions import DatasetsError
    from verl.utils.dataset.rl_dataset import RLHFDataset

    # As verl's trainers make it, but with the rows that its filter leaves out.
    data = OmegaConf.merge(config, {"data": {"filter_overlong_prompts": False}}).data
    files = listed(OmegaConf.select(config, setting))
    samples = OmegaConf.select(config, setting.replace("files", "max_samples"), default=-1)
    # Until it renders a prompt, verl only asks whether there is a processor.
    tokenizer, processor = (model.tokenizer, model.processor) if model else (None, object())
    try:
        dataset = RLHFDataset(files, tokenizer, data, processor, samples)
    except (ValueError, TypeError, DatasetsError) as error:
        problem = f"verl cannot read {setting} as one table: {said(error.__cause__ or error)}"
        yield Finding(problem, "write its files with the same type in each column, and in each field of a column")
        return
    yield from _check_sources(config, setting, dataset)
    yield from _check_columns(setting, dataset)
    yield from _check_agents(config, setting, dataset)
    wrong = list(_check_media(setting, dataset))
    yield from wrong
    if model is None:
        return
    if not any(finding.fatal for finding in wrong):
        yield from _check_prompts(config, setting, dataset)
    if config.data.filter_overlong_prompts:
        yield from _check_filtered(config, setting, dataset)


def _check_sources(config: DictConfig, setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """Rows that verl's own reward functions, which it takes if a run names none, do not know."""
    reward = config.reward
    if reward.custom_reward_function.path or reward.reward_model.enable or reward.reward_manager.source != "register":
        return
    unknown = [name for name in dataset.dataframe.unique("data_source") if not _is_scored(name)]
    if unknown:
        names = ", ".join(map(str, unknown))
        problem = f"{setting} has data_source={names}, which verl's own rewards do not know: it drops the responses"
        fix = "reward.custom_reward_function.path=pkg://cw_plugin.lab.rewards and .name=compute_score, for mathematics"
        yield Finding(problem, fix)


def _is_scored(source: Any) -> bool:
    from verl.utils.reward_score import default_compute_score

    try:
        default_compute_score(source, "", "")
    except NotImplementedError:
        return False
    except Exception:  # of a function that verl has for this source, and that expects another answer than ""
        return True
    return True


def _check_columns(setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """Columns that verl's agent loop, which gets each column as an argument of its name, has a use of its own for."""
    taken = sorted(_TAKEN & set(dataset.dataframe.column_names))
    if taken:
        problem = f"{setting} has the column(s) {', '.join(taken)}, names that verl's agent loop uses itself: it fails"
        yield Finding(f"{problem} at every response", "rename or drop them")


def _check_agents(config: DictConfig, setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """Rows whose agent loop verl does not have, or that has no use for the tools of the run."""
    if "agent_name" not in dataset.dataframe.column_names:
        loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
        tools = config.actor_rollout_ref.rollout.multi_turn.tool_config_path
        if loop == "single_turn_agent" and tools:
            problem = f"multi_turn.tool_config_path={tools} does nothing with agent.default_agent_loop={loop}"
            fix = "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent, or such a column"
            yield Finding(f"{setting} has no column agent_name, so {problem}", fix, fatal=False)
        return
    known = agent_loops(config)
    for name in sorted(set(map(str, dataset.dataframe.unique("agent_name"))) - known):
        problem = f"{setting} has agent_name={name}, which verl does not have"
        yield Finding(problem, f"one of {', '.join(sorted(known))}")


def _check_media(setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """Placeholders without media; and at most one finding of rows where they are not as many as the media."""
    # Earlier releases of verl have no audio_key.
    keys = {f"<{kind}>": getattr(dataset, f"{kind}_key", None) for kind in ("image", "video", "audio")}
    columns = [name for name in dataset.dataframe.column_names if name in keys.values()]
    prompts = [str(prompt) for prompt in dataset.dataframe[dataset.prompt_key]]
    for placeholder, key in keys.items():
        media = list(dataset.dataframe[key]) if key in columns else [None] * len(prompts)
        without = [row for row, prompt in enumerate(prompts) if key and placeholder in prompt and not media[row]]
        if without:
            rows = f"{len(without)} prompt(s), first row {without[0]}"
            problem = f"{setting} has {placeholder} in {rows}, and nothing for it in the column {key}"
            fix = f"data.{placeholder.strip('<>')}_key=<the column that has them>"
            yield Finding(f"{problem}, so the model would read it as text", fix, fatal=False)
    problems = {row: error_of(partial(dataset.__getitem__, row)) for row in range(len(dataset))} if columns else {}
    wrong = [row for row, problem in problems.items() if problem]
    if wrong:
        problem = f"{setting}: verl cannot use {len(wrong)} of {len(dataset)} row(s), first row {wrong[0]}"
        fix = f"write as many <image>, <video> and <audio> into a prompt as the row has in {', '.join(sorted(columns))}"
        yield Finding(f"{problem}: {problems[wrong[0]]}", fix)


def _check_filtered(config: DictConfig, setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """Whether too few rows are left by verl's filter of overlong prompts."""
    dataset.filter_overlong_prompts = True
    rows, left = len(dataset), len(dataset.maybe_filter_out_long_prompts(dataset.dataframe))
    if setting == "data.train_files" and left < rows:
        yield from check_steps(config, left)
    elif left == 0:
        problem = f"data.filter_overlong_prompts=True leaves none of the {rows} row(s) of {setting}"
        yield Finding(problem, f"a larger data.max_prompt_length than {config.data.max_prompt_length}")


def _check_prompts(config: DictConfig, setting: str, dataset: "RLHFDataset") -> Iterator[Finding]:
    """At most one finding: prompts that the model's template refuses, that are empty, or longer than verl keeps."""
    if not hasattr(dataset, "_process_multi_modal_info"):  # verl 0.7.1 renders prompts in the agent loop
        return
    sizes = [len(str(prompt).encode()) for prompt in dataset.dataframe[dataset.prompt_key]]
    longest = sorted(range(len(dataset)), key=lambda row: sizes[row], reverse=True)[:LONGEST]
    lengths: dict[int, int] = {}

    def render(row: int) -> None:
        lengths[row] = _tokens(dataset, row)

    problems = {row: error_of(partial(render, row)) for row in sorted(longest)}
    refused = [row for row, problem in problems.items() if problem]
    if refused:
        verl = "its filter drops such rows" if config.data.filter_overlong_prompts else "it fails on them"
        problem = f"{setting}: verl cannot render {len(refused)} prompt(s), first row {refused[0]}, and {verl}"
        yield Finding(f"{problem}: {problems[refused[0]]}", "correct the rows, or the chat template of the model")
        return
    limit = dataset.max_prompt_length
    overlong = [row for row, length in lengths.items() if length > limit]
    if 0 in lengths.values():
        problem = f"{setting}: the tokenizer makes no token of a prompt, so the model would not read it"
        yield Finding(problem, "a folder of the model with all files of its tokenizer")
    elif overlong and not config.data.filter_overlong_prompts:
        count = f"{len(overlong)}{' or more' if len(overlong) == LONGEST else ''} of {len(dataset)} prompt(s)"
        example = f"row {overlong[0]} has {lengths[overlong[0]]}, the longest {max(lengths.values())}"
        problem = f"{setting}: {count} have more tokens than data.max_prompt_length={limit} ({example})"
        verl = f"verl cuts the beginning, whatever data.truncation={dataset.truncation} says, and fails where media are"
        fix = "a larger data.max_prompt_length, or data.filter_overlong_prompts=True, which leaves these rows out"
        yield Finding(f"{problem}: {verl}", fix)


def _tokens(dataset: "RLHFDataset", row: int) -> int:
    """The length of a prompt, as ``RLHFDataset.maybe_filter_out_long_prompts`` counts it."""
    from verl.utils.tokenizer import build_multimodal_processor_inputs

    messages = dataset._build_messages(dataset.dataframe[row], dataset.prompt_key)
    settings = dict(dataset.apply_chat_template_kwargs)
    if dataset.tool_schemas is not None:
        settings["tools"] = dataset.tool_schemas
    settings.pop("tokenize", None)
    renderer = dataset.processor or dataset.tokenizer
    text = renderer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **settings)
    found = dataset._process_multi_modal_info(messages, dataset.image_patch_size, dataset.config)
    media = dict(zip(("images", "videos", "audio"), found, strict=True))
    if all(kind is None for kind in found):
        return len(dataset.tokenizer(text, add_special_tokens=False)["input_ids"])
    settings = dataset.mm_processor_kwargs
    inputs = build_multimodal_processor_inputs(dataset.processor, text=[text], **media, mm_processor_kwargs=settings)
    return len(inputs["input_ids"][0])
