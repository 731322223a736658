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
        logger: a logger that writes to the run's log, where one line says which advantages the run trains on.

    Raises:
        OptionsError: a variable is unknown, or its value is not valid.
    """

    def __init__(self, folder: Path, tokenizer: Any, logger: logging.Logger = LOGGER) -> None:
        self.options = Options.from_environment()
        self._folder = folder
        self._tokenizer = tokenizer
        self._files = TokenFiles(folder, self.options, logger)
        trains_on = "the host's own" if self.options.kernel == "none" else "reweighted"
        logger.info("cw_grpo: this run trains on %s advantages, %s", trains_on, self.options)

    def reweight(self, batch: Batch, step: int | None) -> tuple[Float[Tensor, "rows time"] | None, dict[str, float]]:
        """Reweight the advantages of a batch, and record its tokens if the step is due.

        Args:
            batch: all rows of the step.
            step: counted from 1; None outside a step.

        Returns:
            ``w~ A`` of every token, as :func:`cw_plugin.weights.reweight` gives it, or None if the kernel is "none":
            then the host's own advantages stay, bit for bit. Beside it, the metrics for the host's logger, by name.
        """
        started = time.perf_counter()
        scope = batch.group if self.options.scope == "group" else None
        weighted, statistics = reweight(
            batch.log_probs, batch.advantages, batch.response_mask, scope, self.options.kernel
        )
        seconds = time.perf_counter() - started
        if step is not None and self.options.is_due(step):
            self._files.write(step, batch, self._tokenizer)
        return (None if self.options.kernel == "none" else weighted), statistics.as_metrics(seconds)

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Write the host's settings, and ours with ``cw_`` before their names, to the run's folder, for the reports."""
        ours = {f"cw_{name}": value for name, value in asdict(self.options).items()}
        write_whole(self._folder / "training_args.json", json.dumps({**settings, **ours}, indent=1, default=str))


def of_responses(
    advantages: Float[Tensor, "rows time"], response_mask: Shaped[Tensor, "rows time"]
) -> Float[Tensor, " rows"]:
    """The advantage of each response, which the host has written to all of its tokens.

    Raises:
        HostError: the advantage differs within a response.
    """
    valid = response_mask != 0
    first_token = valid.int().argmax(1, keepdim=True)
    of_response = advantages.gather(1, first_token)
    if ((advantages - of_response)[valid].abs() > 0).any():  # NaN is reweight's to refuse
        raise HostError(
            "the advantage differs within a response, and CW-GRPO reweights one advantage for each",
            fix="use an estimator that gives all tokens of a response the same advantage, as GRPO's does",
        )
    return of_response[:, 0]
