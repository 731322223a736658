"""Fixtures of OpenRLHF's own classes. They import OpenRLHF when used, as other tests here run without it."""

import pytest
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
    from openrlhf_experiences import MODEL
    from transformers import AutoModelForCausalLM

    actor = Actor(AutoModelForCausalLM.from_pretrained(MODEL))
    actor.packing_samples = False
    return actor
