"""verl's commands: composed as the doctor does it, by verl's own code and the plugin's checks and hooks."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from captured_commands import Command
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.hosts.verl import hooks, register  # noqa: F401  (registers cw_grpo)
from cw_plugin.hosts.verl.refused_settings import ONE_FOR_A_RESPONSE, check_config
from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import examine
from cw_plugin.lab.doctor.settings import check_verl
from published import Outcome, Verdict
from published.programs import program_of
from published.verl_programs import judge_program, keeps_weights

SCRIPTS = ("examples/**/*.sh", "verl/experimental/**/*.sh")
REWARD = "reward.custom_reward_function.path"
ESTIMATOR = "algorithm.adv_estimator"
# Those that compare the responses to a prompt with each other.
GROUP_RELATIVE = {*ONE_FOR_A_RESPONSE, "cw_grpo"}


def judge(command: Command) -> Verdict | None:
    """None for a command that does not train with prompt groups."""
    words = command.words
    # A setting of a trainer, or a configuration by its name.
    if not any(re.match(r"[+~]*(actor_rollout_ref|algorithm)\.|--config-", word) for word in words):
        return None
    with _started(command):
        try:
            config = compose(words)
        except OptionsError as error:
            if str(error).endswith("does not train with verl's trainer"):
                return None
            return Verdict(Outcome.BROKEN, str(error)) if _named(words) in GROUP_RELATIVE else None
        if OmegaConf.select(config, ESTIMATOR) not in GROUP_RELATIVE:
            return None
        if OmegaConf.select(config, REWARD):
            OmegaConf.update(config, REWARD, None)  # whose packages and services are not here
        findings = examine(config, {"verl": check_verl})
        return Verdict(Outcome.BROKEN, findings[0][1].what) if findings else _changed(command, config)


def _changed(command: Command, config: DictConfig) -> Verdict:
    """With the line of README's table; for another estimator than grpo, the plugin's option names it."""
    line = [f"{ESTIMATOR}=cw_grpo"]
    if config.algorithm.adv_estimator != "grpo":
        line.append(f"+algorithm.cw_grpo.estimator={config.algorithm.adv_estimator}")
    kept = [word for word in command.words if word.lstrip("+").split("=")[0] != ESTIMATOR]
    try:
        changed = compose([*kept, *line])
    except OptionsError as error:
        return Verdict(Outcome.NOT_SERVED, str(error))
    try:
        check_config(changed)
    except OptionsError as error:
        return Verdict(Outcome.REFUSED, str(error))
    try:
        hooks.require_hooks(changed)
    except CWGRPOError as error:
        return Verdict(Outcome.NOT_SERVED, str(error))
    actor = changed.actor_rollout_ref.actor
    if not keeps_weights(actor, actor.policy_loss.loss_mode):
        return Verdict(Outcome.SILENT, f"policy_loss.loss_mode={actor.policy_loss.loss_mode} loses the weights")
    program, _ = program_of(command) or ("", [])
    if not program.startswith("verl."):
        return judge_program(program, changed)
    return Verdict(Outcome.WORKS, " ".join(["with", *line[1:]]) if line[1:] else "")


def _named(words: Sequence[str]) -> str | None:
    """The estimator that a command names."""
    named = [word.split("=", 1)[1] for word in words if word.lstrip("+").startswith(f"{ESTIMATOR}=")]
    return named[-1].strip("'\"") if named else None


@contextmanager
def _started(command: Command) -> Iterator[None]:
    """In the folder and with the variables of a command, as ``python -m`` finds its program."""
    before = os.getcwd()
    with patch.dict(os.environ, command.environment), patch.object(sys, "path", [str(command.folder), *sys.path]):
        os.chdir(command.folder)
        try:
            yield
        finally:
            os.chdir(before)
