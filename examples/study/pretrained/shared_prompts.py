"""A forward pass that runs each prompt once for all of its answers: less than half of the tokens of this study."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def entropies(log_policy: Float[Tensor, "rows time words"]) -> Float[Tensor, "rows time"]:
    """The entropy of the policy at each position, in nats, from the logarithms of its probabilities."""
    return -(log_policy.exp() * log_policy).sum(-1)


def answer_logits(model: Any, ids: Int[Tensor, "rows tokens"], time: int) -> Float[Tensor, "rows time words"]:
    """Logits at the last ``time`` tokens of each row, which are its answer; the tokens before them are its prompt.

    The answers to a prompt stand behind it, one after the other, in one sequence. An answer's tokens have the positions
    that they would have alone, and see the prompt and their own answer.
    """
    prompts, of_row = ids[:, :-time].unique(dim=0, return_inverse=True)
    order = of_row.argsort(stable=True)  # rows by prompt
    groups, prompt = prompts.shape
    if len(ids) % groups or (of_row.bincount() != len(ids) // groups).any():
        raise ValueError(f"{len(ids)} rows have {groups} prompts, of which some have more answers than others")
    answers = len(ids) // groups
    sequences = torch.cat([prompts, ids[order, -time:].view(groups, answers * time)], 1)

    device = ids.device
    positions = torch.cat([torch.arange(prompt), torch.arange(prompt, prompt + time).repeat(answers)]).to(device)
    in_prompt = torch.full((prompt,), -1)
    owner = torch.cat([in_prompt, torch.arange(answers).repeat_interleave(time)]).to(device)  # the answer of a token
    is_seen = (owner[None] == -1) | (owner[:, None] == owner[None])
    mask = is_seen & (positions[:, None] >= positions[None])
    hidden = model.model(
        input_ids=sequences,
        attention_mask=mask.expand(groups, 1, -1, -1),
        position_ids=positions.expand(groups, -1),
        use_cache=False,
    ).last_hidden_state

    # The state at a token predicts the next one: that at the prompt's end, the first token of each answer.
    first = hidden[:, prompt - 1, None, None].expand(-1, answers, -1, -1)
    others = hidden[:, prompt:].view(groups, answers, time, -1)[:, :, :-1]
    states = torch.cat([first, others], 2).flatten(0, 1)
    return model.lm_head(states[order.argsort()])
