"""The paper's recipes: each script composes to what examples/README.md says, and trains on a CPU."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import validate_config

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("run_*.sh"))
METHODS = ("cw_grpo", "grpo", "clip_cov")


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"} | more


def compose(script: str, method: str, *overrides: str) -> DictConfig:
    """What DRY_RUN=1 prints."""
    result = subprocess.run(
        ["bash", ROOT / "examples" / script, *overrides],
        env=environment(DRY_RUN="1", METHOD=method),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return OmegaConf.create(yaml.safe_load(result.stdout))


@pytest.fixture(scope="module")
def composed() -> dict[tuple[str, str], DictConfig]:
    pairs = list(itertools.product(SCRIPTS, METHODS))
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(pairs, threads.map(lambda pair: compose(*pair), pairs), strict=True))


def table() -> list[tuple[str, str, str]]:
    """The rows of README.md's table: which scripts a row is of ("" for all), verl's key, and its value."""
    text = (ROOT / "examples" / "README.md").read_text()
    lines = text[text.index("| setting |") :].split("\n\n")[0].splitlines()[2:]
    pattern = re.compile(r".*\| (?:([\w.-]+): )?`([a-z_.]+)` \| `([^`]+)` \|")
    return [(match[1] or "", match[2], match[3]) for match in map(pattern.fullmatch, lines)]  # type: ignore[index]


def is_about(condition: str, script: str, method: str) -> bool:
    return {
        "": True,
        "FSDP": "fsdp" in script,
        "Megatron": "megatron" in script,
        "1.5B": "1_5b" in script,
        "7B": "7b" in script,
        "clip_cov": method == "clip_cov",
    }[condition]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_composes_to_the_table_and_passes_verls_checks(script, method, composed):
    config = composed[script, method]
    for condition, key, value in table():
        if is_about(condition, script, method):
            assert OmegaConf.select(config, key) == yaml.safe_load(value.replace("e-", ".0e-")), key
    assert config.algorithm.adv_estimator == ("cw_grpo" if method == "cw_grpo" else "grpo")
    assert config.trainer.n_gpus_per_node == 4
    validate_config(config=config, use_reference_policy=True, use_critic=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_methods_differ_in_one_variable(script, composed):
    def flat(method: str) -> dict[str, Any]:
        def walk(node: Any, path: str) -> Any:
            if isinstance(node, dict):
                for key, value in node.items():
                    yield from walk(value, f"{path}.{key}" if path else str(key))
            else:
                yield path, node

        return dict(walk(OmegaConf.to_container(composed[script, method]), ""))

    def changed(method: str) -> set[str]:
        """Against grpo, names and files of the runs apart."""
        pairs = zip(flat(method).items(), flat("grpo").items(), strict=True)
        changes = {key: value for (key, value), (_, other) in pairs if value != other}
        named = {key for key, value in changes.items() if "/checkpoints/cw_grpo/" in str(value)}
        return {key for key in changes.keys() - named if not key.endswith("experiment_name")}

    actor = "actor_rollout_ref.actor."
    assert changed("cw_grpo") == {"algorithm.adv_estimator"}
    assert changed("clip_cov") == {f"{actor}policy_loss.loss_mode", f"{actor}clip_ratio_low", f"{actor}clip_ratio_high"}


def test_later_overrides_win_and_an_unknown_method_is_refused():
    config = compose(SCRIPTS[0], "grpo", "actor_rollout_ref.rollout.n=3", "trainer.nnodes=2")
    assert (config.actor_rollout_ref.rollout.n, config.trainer.nnodes) == (3, 2)
    result = subprocess.run(
        ["bash", ROOT / "examples" / SCRIPTS[0]], env=environment(METHOD="ppo"), capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr == "METHOD=ppo is unknown; use cw_grpo, grpo or clip_cov\n"
