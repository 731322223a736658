"""A forward pass that runs equal beginnings of rows once."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Tree(NamedTuple):
    """The different beginnings of some rows. Each of them is a node: its last token, after all that come before it."""

    tokens: Int[Tensor, " nodes"]
    positions: Int[Tensor, " nodes"]
    is_seen: Bool[Tensor, "nodes nodes"]  # [i, j]: whether node j is node i or comes before it
    node: Int[Tensor, "rows length"]  # the beginning that ends at this token; at padding, the last one before it


def tree(ids: Int[Tensor, "rows length"], is_token: Bool[Tensor, "rows length"]) -> Tree:
    """The tree of rows that may have padding, where ``is_token`` is false, at both ends."""
    rows, length = ids.shape
    node = torch.full((rows,), -1, device=ids.device)  # no token yet
    nodes, tokens, parents = [], [], []
    count = 0
    for at in range(length):
        goes_on = is_token[:, at]
        different, of_row = torch.stack([node, ids[:, at]], 1)[goes_on].unique(dim=0, return_inverse=True)
        node = node.clone()
        node[goes_on] = count + of_row
        count += len(different)
        parents.append(different[:, 0])
        tokens.append(different[:, 1])
        nodes.append(node)

    is_seen = torch.eye(count, dtype=torch.bool, device=ids.device)
    first = 0
    for parent in parents:  # a parent's row is complete before those of its children
        own = torch.arange(first, first + len(parent), device=ids.device)
        has_parent = parent >= 0
        is_seen[own[has_parent]] |= is_seen[parent[has_parent]]
        first += len(parent)
    return Tree(torch.cat(tokens), is_seen.sum(1) - 1, is_seen, torch.stack(nodes, 1))


def log_policy(model: Any, rows: Tree, predicting: Int[Tensor, " places"]) -> Float[Tensor, "places words"]:
    """The logarithms of the policy's probabilities after each of the nodes ``predicting``."""
    hidden = model.model(
        input_ids=rows.tokens[None],
        attention_mask=rows.is_seen[None, None],
        position_ids=rows.positions[None],
        use_cache=False,
    ).last_hidden_state[0]
    return model.lm_head(hidden[predicting]).float().log_softmax(-1)


def log_probs_and_entropies(
    model: Any,
    ids: Int[Tensor, "rows length"],
    is_token: Bool[Tensor, "rows length"],
    time: int,
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Of the last ``time`` tokens of each row: the logarithm of its probability, and the entropy at its place, in nats.

    They depend on the tokens before it alone. What stands at padding has no meaning.
    """
    rows = tree(ids[:, :-1], is_token[:, :-1])  # the last token is predicted, and predicts nothing
    predicting, place = rows.node[:, -time:].unique(return_inverse=True)
    logarithms = log_policy(model, rows, predicting)
    return logarithms[place, ids[:, -time:]], entropies(logarithms)[place]


def entropies(logarithms: Float[Tensor, "place words"]) -> Float[Tensor, " place"]:
    """The entropy of the policy at each place, in nats, from the logarithms of its probabilities."""
    return -(logarithms.exp() * logarithms).sum(-1)
