"""The tests of agent-lightning's trainer, whose release lies in a folder over the packages of the environment."""

from interpreter import run_tests

from cw_plugin.hosts.host import AGENT_LIGHTNING


def test_a_release_of_agent_lightning_passes_the_tests(packages):
    """It asks for Python 3.12; what the tests call runs on 3.11, too."""
    release = packages(f"agentlightning=={AGENT_LIGHTNING}", "httpx-retries==0.6.0", "--ignore-requires-python")
    run_tests("hosts/verl/test_agent_lightning.py", path=(release,))
