"""Fixtures of OpenRLHF's own classes. They import OpenRLHF when used, as other tests here run without it."""

import pytest
import torch
import wrapt


@pytest.fixture(scope="session")
def plain():
    """OpenRLHF's own method, which importing this package has not changed; then the hook is installed."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    from cw_plugin.hosts.openrlhf import hook

    before = vars(RemoteExperienceMaker)["compute_advantages_and_returns"]
    assert not isinstance(before, wrapt.ObjectProxy) and hook.install.cache_info().currsize == 0
    hook.install()
    hook.install()
    assert hook.install.cache_info().currsize == 1
    assert vars(RemoteExperienceMaker)["compute_advantages_and_returns"].__wrapped__ is before
    return before


@pytest.fixture(scope="module")
def actor():
    from openrlhf.models import Actor
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # log-probs that differ
    actor = Actor(model)
    actor.packing_samples = False
    return actor
