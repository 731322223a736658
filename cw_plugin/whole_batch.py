"""The method in a trainer whose process has the whole batch when it computes advantages: OpenRLHF's and SkyRL's."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from cw_plugin.errors import HostError
from cw_plugin.files import write_whole
from cw_plugin.options import Options
from cw_plugin.records.write import LOGGER, Batch, TokenFiles
from cw_plugin.weights import reweight


class WholeBatchRun:
    """One run: its options, which are environment variables (:mod:`cw_plugin.options`), and its token records.

    Args:
        folder: the run's folder, for the records.
        tokenizer: one of transformers, which spells the tokens of a record.
        logger: writes to the run's log, where one line says that the run trains on reweighted advantages.

    Raises:
        OptionsError: a variable is unknown, or its value is not valid.
    """

    def __init__(self, folder: Path, tokenizer: Any, logger: logging.Logger = LOGGER) -> None:
        self.options = Options.from_environment()
        self._folder, self._tokenizer = folder, tokenizer
        self._tokens = TokenFiles(folder, self.options, logger)
        logger.info("cw_grpo: this run trains on reweighted advantages, %s", self.options)

    def reweight(self, batch: Batch, step: int | None) -> tuple[Float[Tensor, "rows time"] | None, dict[str, float]]:
        """Reweight the advantages of a batch, and record its tokens if the step is due; None is no step.

        Returns:
            ``w~ A`` of every token, as :func:`cw_plugin.weights.reweight` gives it, or None if the kernel is "none":
            then the host's own advantages stay, bit for bit. And the metrics for the host's logger, by name.
        """
        started = time.perf_counter()
        scope = batch.group if self.options.scope == "group" else None
        weighted, statistics = reweight(
            batch.log_probs, batch.advantages, batch.response_mask, scope, self.options.kernel
        )
        metrics = {**vars(statistics), "seconds": time.perf_counter() - started}
        if step is not None and self.options.is_due(step):
            self._tokens.write(step, batch, self._tokenizer)
        named = {f"cw_grpo/{name}": value for name, value in metrics.items()}
        return None if self.options.kernel == "none" else weighted, named

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the host's settings, and ours with ``cw_`` before their names, to the run's folder, for the reports."""
        ours = {f"cw_{name}": value for name, value in asdict(self.options).items()}
        write_whole(self._folder / "training_args.json", json.dumps({**settings, **ours}, indent=1, default=str))


def of_responses(
    advantages: Float[Tensor, "rows time"], response_mask: Shaped[Tensor, "rows time"]
) -> Float[Tensor, " rows"]:
    """The advantage of each response, which the host has written to all of its tokens. A HostError if they differ."""
    valid = response_mask != 0
    by_response = advantages.gather(1, valid.int().argmax(1, keepdim=True))  # at the first of its tokens
    if ((advantages - by_response)[valid].abs() > 0).any():  # NaN is reweight's to refuse
        raise HostError(
            "the advantage differs within a response, and CW-GRPO reweights one advantage for each; use an estimator "
            "that gives all tokens of a response the same advantage, as GRPO's does"
        )
    return by_response[:, 0]
