"""One batch of responses, as a trainer has it when it computes advantages, on any host."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from cw_plugin.errors import HostError
from cw_plugin.groups import as_booleans


@runtime_checkable
class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of a sequence."""

    def batch_decode(self, sequences: list[list[int]]) -> list[str]:
        """The text of each sequence."""


@dataclass(frozen=True)
class Batch:
    """The rows that a trainer's process has: of a step's batch, all of them, or its part.

    Attributes:
        log_probs: of the sampled tokens under the policy before the update, in nats.
        advantages: of the responses, before the weights.
        response_mask: nonzero where a token belongs to the response and is trained on.
        group: the number of each row's prompt group, in the whole batch.
        rewards: of the responses.
        read_sequences: returns the token ids of prompt and response for some rows; padding tokens may be in them. The
            ids of a response stand where its ``response_mask`` does. None if the host cannot tell rows apart; then
            nothing is recorded.
        tokenizer: spells the tokens of a record; None if nothing is recorded.
        entropies: of the policy before the update at each position, in nats; None if the weighting needs none.
        weights: w~ of each token, which a run puts here for the token record.
    """

    log_probs: Float[Tensor, "rows time"]
    advantages: Float[Tensor, " rows"]
    response_mask: Shaped[Tensor, "rows time"]
    group: Int[Tensor, " rows"]
    rewards: Float[Tensor, " rows"]
    read_sequences: Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]] | None
    tokenizer: Tokenizer | None
    entropies: Float[Tensor, "rows time"] | None = None
    weights: Float[Tensor, "rows time"] | None = None

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with each of its tensors changed."""
        changed: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)

    def on_cpu(self) -> "Batch":
        """The batch on the CPU, with a mask of booleans. On a GPU, this waits for a forward pass that is queued."""
        on_cpu = self.with_tensors(lambda tensor: tensor.detach().cpu())
        return replace(on_cpu, response_mask=as_booleans(on_cpu.response_mask))


def group_numbers(prompts: Iterable[Hashable]) -> Int[Tensor, " rows"]:
    """A number for each row's prompt (or its uid), in the order in which the prompts occur."""
    number_of_prompt: dict[Hashable, int] = {}
    numbers = [number_of_prompt.setdefault(prompt, len(number_of_prompt)) for prompt in prompts]
    return torch.tensor(numbers, dtype=torch.long)


def joined(parts: Sequence[Shaped[Tensor, "_ _"]]) -> Shaped[Tensor, "all width"]:
    """The rows of all micro-batches, padded on the right with zeros to the widest."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([functional.pad(part, (0, width - part.shape[1])) for part in parts])


def of_responses(
    advantages: Float[Tensor, "rows time"], response_mask: Shaped[Tensor, "rows time"]
) -> Float[Tensor, " rows"]:
    """The advantage of each response, which a host has written to all of its tokens.

    Raises:
        HostError: the advantage differs within a response.
    """
    valid = as_booleans(response_mask)
    first_token = valid.int().argmax(1, keepdim=True)
    of_response = advantages.gather(1, first_token)
    if ((advantages - of_response)[valid].abs() > 0).any():  # NaN is reweight's to refuse
        raise HostError(
            "the advantage differs within a response, and CW-GRPO reweights one advantage for each",
            fix="use an estimator that gives all tokens of a response the same advantage, as GRPO's does",
        )
    return of_response[:, 0]
