"""Checks that runs with the same name are seeds of one method: they may differ in the seed, but not in the method."""

from __future__ import annotations

import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cw_plugin.errors import ReportError
from cw_plugin.reports.evaluations import Evaluation
from cw_plugin.reports.runs import Run, read_config

# Settings of verl that may differ between seeds of one method; all others must agree. Lengths may differ because the
# figures show the steps that all seeds have.
MAY_DIFFER = (
    "trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.log_val_generations",
    "trainer.*_dir",  # where a run is written
    "trainer.total_epochs", "*total_training_steps",
    "trainer.save_freq", "trainer.test_freq", "trainer.val_before_train",
    "trainer.resume_*", "trainer.max_*_ckpt_to_keep", "trainer.del_local_ckpt_after_load",
    "algorithm.cw_grpo.record_*", "algorithm.cw_grpo.entropy_*",  # what is recorded and warned of
    "ray_kwargs.*", "global_profiler.*", "*.profiler.*",
)  # fmt: skip
SEEDS = ("*.seed", "*_seed")

# What makes two methods, and so may differ between them.
METHOD = ("algorithm.adv_estimator", "algorithm.cw_grpo.*", "*.policy_loss.*", "trl.cw_*")

MODEL = "actor_rollout_ref.model.path"

# The same for settings.json of an evaluation; its questions are compared benchmark by benchmark.
EVALUATION_MAY_DIFFER = ("model", "checkpoint", "weights", "step", "n", "seed", "overrides", "versions", "prompt_sha",
                         "benchmarks.*.n", "benchmarks.*.finished", "benchmarks.*.asked_at",
                         "interruptions")  # fmt: skip


def refuse_twice(folders: Iterable[tuple[str, Path]]) -> None:
    """Raise ReportError if a folder is given twice: it would count as two seeds, or as two methods that agree."""
    given: dict[Path, str] = {}
    for name, path in folders:
        if (before := given.get(path.resolve())) is not None:
            how = f"twice as {name}" if before == name else f"as {before} and as {name}"
            raise ReportError(f"{path} is given {how}; give the folder of each run once")
        given[path.resolve()] = name


def check_runs(folders: Sequence[tuple[str, Path]]) -> list[str]:
    """Compare the runs of each name by the configuration that hydra or CWGRPOTrainer has saved in their folders.

    Args:
        folders: name and folder of every run.

    Returns:
        A sentence for each name whose runs could not be compared.

    Raises:
        ReportError: runs of one name differ in a setting, or have the same seeds.
    """
    refuse_twice(folders)
    notes = []
    by_name: dict[str, list[Path]] = defaultdict(list)
    for name, path in folders:
        by_name[name].append(path)
    for name, paths in by_name.items():
        if len(paths) < 2:
            continue
        known = {path: _flat(config) for path in paths if (config := read_config(path)) is not None}
        if len(known) < len(paths):
            without = ", ".join(str(path) for path in paths if path not in known)
            files = ".hydra/config.yaml or training_args.json"
            notes.append(f"{name}: no {files} in {without}, so these runs were not compared as seeds.")
        _compare(name, [(str(path), config) for path, config in known.items()], (*MAY_DIFFER, *SEEDS))
        drawn: dict[tuple[Any, ...], Path] = {}
        for path, config in known.items():
            seeds = tuple(sorted((key, str(value)) for key, value in config.items() if _any(key, SEEDS)))
            if seeds in drawn:
                raise ReportError(
                    f"{drawn[seeds]} and {path}, both named {name}, have the same seeds "
                    f"(data.seed={config.get('data.seed')}); give one of them, or train with another seed"
                )
            drawn[seeds] = path
    return notes


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, None if the configuration lacks it."""
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def seed_of(config: Mapping[str, Any]) -> Any:
    """What runs of two methods have in common if they are a pair; None if it is not known."""
    return setting(config, "data.seed")


def is_grpo(run: Run) -> bool:
    """Whether a run is plain GRPO: by its configuration, else by what became of extreme tokens, else by its name."""
    if estimator := setting(run.config, "algorithm.adv_estimator"):
        loss = setting(run.config, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla"
        unweighted = estimator == "cw_grpo" and setting(run.config, "algorithm.cw_grpo.kernel") == "none"
        return loss == "vanilla" and (estimator == "grpo" or unweighted)
    logged = {key: run.series(f"cw_grpo/{key}")[1] for key in ("effective_sample_share", "extreme_gradient_share")}
    if (logged["effective_sample_share"] < 1 - 1e-6).any():
        return False
    return bool((logged["extreme_gradient_share"] > 0).any()) or run.name.lower() == "grpo"


def other_differences(configs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What methods differ in besides the method: settings that all of the configurations have -> the values."""
    known = [_flat(config) for config in configs if config]
    shared = set.intersection(*map(set, known)) if known else set()
    found = {}
    for key in sorted(shared):
        values = [_value(config, key) for config in known]
        if any(value != values[0] for value in values) and not _any(key, (*MAY_DIFFER, *SEEDS, *METHOD)):
            found[key] = values
    return found


def same_model(configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all runs are known to start from one model."""
    models = {_value(_flat(config), MODEL) for config in configs}
    return len(models) == 1 and None not in models


def check_evaluations(name: str, evaluations: Sequence[Evaluation]) -> None:
    """Raise ReportError if evaluations of the same name and step have other settings, or are of the same model."""
    known = [(str(e.settings.get("checkpoint")), _flat(e.settings)) for e in evaluations if e.settings]
    _compare(name, known, EVALUATION_MAY_DIFFER)
    answers = [(checkpoint, config.get("weights"), config.get("seed")) for checkpoint, config in known]
    for checkpoint, weights, seed in answers:
        if weights is not None and answers.count((checkpoint, weights, seed)) > 1:
            raise ReportError(f"{checkpoint} was evaluated twice with seed {seed} as {name}; give one of the folders")


def asked_differently(evaluations: Sequence[Evaluation]) -> list[str]:
    """A sentence about settings in which evaluations of several models differ, if they do.

    Raises:
        ReportError: two of them have a benchmark of the same name, but no question of it in common.
    """
    for first, other in itertools.combinations(evaluations, 2):
        for name in sorted(first.accuracy.keys() & other.accuracy.keys()):
            if not first.accuracy[name].keys() & other.accuracy[name].keys():
                raise ReportError(
                    f"{first.name} and {other.name} have no question of {name} in common; evaluate one of them again, "
                    "on the file of the other"
                )
    known = [each.settings for each in evaluations if each.settings]
    texts = []
    for key in sorted(set().union(*known) - {*EVALUATION_MAY_DIFFER, "benchmarks"}):
        given = (settings.get(key) for settings in known)
        values = ["None" if value == {} else str(value) for value in given]  # neither sets anything
        if len(set(values)) > 1:
            texts.append(f"{key} ({' and '.join(dict.fromkeys(textwrap.shorten(value, 40) for value in values))})")
    asked = [e.settings.get("benchmarks", {}) for e in evaluations]
    for name in dict.fromkeys(name for each in asked for name in each):
        if len({each[name].get("prompt_sha") for each in asked if name in each}) > 1:
            texts.append(f"the prompt of {name}")
    return [f"The models were not asked alike: {', '.join(texts)} differ."] if texts else []


def _compare(name: str, configs: Sequence[tuple[str, dict[str, Any]]], may_differ: Sequence[str]) -> None:
    """Raise ReportError for the first two that differ in a setting."""
    for place, config in configs[1:]:
        first_place, first = configs[0]
        differ = [
            key
            for key in sorted(first.keys() | config.keys())
            if not _any(key, may_differ) and _value(first, key) != _value(config, key)
        ]
        if differ:
            key, others = differ[0], len(differ) - 1
            more = f" (and {others} more setting{'s' * (others > 1)})" if others else ""
            raise ReportError(
                f"{first_place} and {place}, both named {name}, are not seeds of one method: {key} is "
                f"{first.get(key, 'not set')} in the first and {config.get(key, 'not set')} in the second{more}; give "
                "them different names"
            )


def _any(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(key, pattern) for pattern in patterns)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _value(config: dict[str, Any], key: str) -> Any:
    """A setting as it is compared: only the last two parts of a path, because the rest differs by machine."""

    def tail(value: Any) -> Any:
        return "/".join(Path(value).parts[-2:]) if isinstance(value, str) and "/" in value else value

    value = config.get(key)
    return [tail(item) for item in value] if isinstance(value, list) else tail(value)
