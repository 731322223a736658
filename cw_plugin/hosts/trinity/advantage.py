"""The advantage functions: Trinity's GRPO, for responses and for steps of an agent, multiplied by the weights."""

import os
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from trinity.algorithm.advantage_fn.grpo_advantage import GRPOGroupedAdvantage
from trinity.algorithm.advantage_fn.multi_step_grpo_advantage import StepWiseGRPOAdvantageFn
from trinity.common.constants import LOG_DIR_ENV_VAR
from trinity.utils.log import get_logger

from cw_plugin.batch import Batch, group_numbers, of_responses
from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.host import TRINITY
from cw_plugin.hosts.trinity.needs import NEEDS
from cw_plugin.options import Options, variables
from cw_plugin.run import Run

if TYPE_CHECKING:
    from trinity.algorithm.advantage_fn import AdvantageFn
    from trinity.common.experience import Experience
else:
    AdvantageFn = object  # Trinity's function comes with the class that derives from this one


_padded = partial(pad_sequence, batch_first=True)


class ReweightingAdvantage(AdvantageFn):
    """Stands in front of an advantage function of Trinity, whose experiences it reweights.

    Trinity calls it once for each step of its explorer, with all experiences of the step. A prompt group is a task: all
    its runs, and with several steps in a run, all of these. Log-probs are those of the policy that sampled, which
    Trinity's losses take as the old ones, too (``bypass_old_logprobs``). Tokens outside ``action_mask`` take no part.

    Records and the method file go to the run's folder, which also holds Trinity's checkpoints.

    Args:
        tokenizer: a model, or a tokenizer's folder, by which token records are spelt. Without one, none are written.
        **arguments: the options, and the arguments of Trinity's function.

    Raises:
        OptionsError: an unknown argument or value, or options in the environment; or the folder has checkpoints of
            another method.
        HostError: Trinity lacks what the weights need.
    """

    def __init__(self, tokenizer: str | None = None, **arguments: Any) -> None:
        TRINITY.require(*NEEDS)
        names = [field.name for field in fields(Options)]
        of_trinity = {name: value for name, value in arguments.items() if name not in names}
        known = ["tokenizer", *names, *self.default_args()]
        for name in of_trinity:
            if name not in known:  # some functions of Trinity would ignore it
                problem = f"{name} is not an argument of {type(self).__name__}"
                raise OptionsError(problem, fix=f"advantage_fn_args may have {', '.join(known)}")
        if variables():
            problem = f"{' and '.join(variables())} in the environment would change nothing in Trinity-RFT"
            raise OptionsError(problem, fix="unset it, and write the option under advantage_fn_args")
        super().__init__(**of_trinity)
        options = Options.of({name: value for name, value in arguments.items() if name in names})
        options.refuse_without_entropies("Trinity-RFT")
        self._cw_tokenizer = None if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer)
        folder = _run_folder()
        self._cw_run = Run(options, folder, get_logger(__name__))
        self._cw_run.begin(folder, any(folder.glob("global_step_*")))

    def __call__(self, exps: Any, **kwargs: Any) -> Any:
        """Refuse algorithms whose trainer computes advantages, from a batch that may not have whole groups."""
        raise OptionsError(
            f"this algorithm_type computes advantages in the trainer, where {type(self).__name__} cannot run",
            fix="use one that computes them in groups, such as algorithm_type: grpo",
        )

    def process(self, exps: "list[Experience]") -> "tuple[list[Experience], dict[str, Any]]":
        """Trinity's experiences, with w~ A in place of their advantages, and the metrics."""
        exps, metrics = super().process(exps)
        if not exps:  # std_threshold may leave out every group
            return exps, metrics
        step = exps[0].eid.batch  # a step of the explorer, counted from 1; other programs may have a name here
        try:
            reweighted = self._cw_run.reweight(self._cw_batch(exps), step if isinstance(step, int) else 0)
        except NonFiniteError as error:
            raise error.named("experiences", [experience.eid for experience in exps]) from error
        if reweighted.advantages is not None:
            for experience, row in zip(exps, reweighted.advantages, strict=True):
                experience.advantages = row[: len(experience.action_mask)].clone()
                experience.returns = experience.advantages.clone()
        return exps, {**metrics, **reweighted.metrics}

    def _cw_batch(self, exps: "list[Experience]") -> Batch:
        for experience in exps:
            tokens = len(experience.action_mask)
            found = None if experience.logprobs is None else len(experience.logprobs)
            if found != tokens:
                raise HostError(
                    f"{experience.eid} has {found} log-probs, and an action_mask of {tokens} tokens",
                    fix="let the workflow return the log-prob of each token after the prompt",
                )
        mask = _padded([experience.action_mask for experience in exps])
        rewards = [float("nan") if experience.reward is None else experience.reward for experience in exps]
        return Batch(
            log_probs=_padded([experience.logprobs.float() for experience in exps]),
            advantages=of_responses(_padded([experience.advantages.float() for experience in exps]), mask),
            response_mask=mask,
            group=group_numbers(experience.eid.tid for experience in exps),
            rewards=mask.new_tensor(rewards, dtype=exps[0].advantages.dtype),
            read_sequences=None if self._cw_tokenizer is None else partial(_sequences, exps),
            tokenizer=self._cw_tokenizer,
        )


class CWGRPOAdvantage(ReweightingAdvantage, GRPOGroupedAdvantage):
    """Trinity's ``grpo``, multiplied by the weights."""


class CWStepWiseGRPOAdvantage(ReweightingAdvantage, StepWiseGRPOAdvantageFn):
    """Trinity's ``step_wise_grpo``, of agents with several steps, multiplied by the weights."""


def _sequences(exps: "list[Experience]", rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and response for some rows."""
    chosen = [exps[row] for row in rows]
    return [(one.tokens[: one.prompt_length], one.tokens[one.prompt_length :]) for one in chosen]


def _run_folder() -> Path:
    """The folder of the run, in which Trinity has its folder of logs. An advantage function is told no other."""
    logs = os.environ.get(LOG_DIR_ENV_VAR)
    if not logs:
        raise HostError(f"{LOG_DIR_ENV_VAR} is not set, so the run's folder is unknown", fix="start `trinity run`")
    return Path(logs).parent
