"""README's table of hosts, and how to install: python tests/tools/hosts_table.py writes both into README.md.

The releases are those of cw_plugin/hosts/host.py, so that the table cannot promise others than the error messages do.
"""

import re
from pathlib import Path

from cw_plugin.hosts import host
from cw_plugin.lab.errors import IS_ON_PYPI

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- hosts: tests/tools/hosts_table.py -->\n", "<!-- end of hosts -->"
IN_A_CLONE = """\
On every node, clone this repository (CLONE, below), activate the environment of your framework, and install the package
from CLONE. Nothing of your framework is modified. Then change one line of your own command or script:

"""
FROM_PYPI = """\
On every node, activate the environment of your framework, and install the package. Nothing of your framework is
modified. Then change one line of your own command or script. CLONE is a clone of this repository.

"""


def released(of: host.Host) -> str:
    return f"{of.name} {of.tested}"


def install(extra: str = "") -> str:
    package = "cw-plugin" if IS_ON_PYPI else "."
    return f'`pip install "{package}[{extra}]"`' if extra else f"`pip install {package}`"


# The last column is what is not supported, shortest; the page of the first column has all of it. The shares below the
# table are measured by tests/benchmarks/published_commands.py, whose page says of which commits.
TABLE = f"""\
| framework | install | the line that changes | where it ran | refused |
|---|---|---|---|---|
| [{released(host.VERL)}](cw_plugin/hosts/verl/README.md) | {install()} | `algorithm.adv_estimator=cw_grpo` \
| CPU: FSDP2 and Megatron, 2 ranks; a step on an H200 | `loss_mode=geo_mean`, `rollout.n=1` |
| [{released(host.TRL)}](examples/trl/README.md) | {install("trl")} \
| `from cw_plugin.hosts.trl import CWGRPOConfig as GRPOConfig, CWGRPOTrainer as GRPOTrainer` \
| CPU: 3 processes; an H200 | sequence-level ratios, Liger's loss |
| [Axolotl 0.21, which trains with TRL](examples/axolotl/README.md) | {install()} | `plugins: [cw_grpo.CWGRPOPlugin]` \
| CPU: its classes, 1 process | `async_prefetch`, context parallelism |
| [{released(host.SWIFT)}](examples/swift/plugin.py) | {install("swift")} \
| `--external_plugins CLONE/examples/swift/plugin.py` \
| CPU: 2 processes | its Megatron trainer, sequence parallelism, a teacher |
| [{released(host.OPENRLHF)}](examples/openrlhf/README.md) | {install()} \
| `python3 -m cw_plugin.hosts.openrlhf` for `openrlhf.cli.train_ppo_ray` \
| CPU: 2 actors | a KL penalty in the reward |
| [{released(host.SKYRL)}](examples/skyrl/README.md) | {install()} \
| `python3 -m cw_plugin.hosts.skyrl PROGRAM` for `python3 -m PROGRAM` \
| CPU: 2 workers | normalising reweighted advantages again |
| [{released(host.TRINITY)}](cw_plugin/hosts/trinity/README.md) | {install()} \
| `advantage_fn: cw_plugin.hosts.trinity.CWGRPOAdvantage` \
| CPU: its pipeline and losses | algorithms whose trainer computes advantages |
| [agent-lightning {host.AGENT_LIGHTNING}, which trains with verl](cw_plugin/hosts/verl/README.md) | {install()} \
| `algorithm.adv_estimator=cw_grpo` | CPU: a step of its trainer, without workers | as with verl |
| [Tinker cookbook {host.TINKER_COOKBOOK}](examples/tinker/README.md) | {install()} \
| `train.assemble_training_data = cw_grpo.assemble_training_data` \
| CPU: its data, without the service | options, records |
| [rLLM 0.3.0, with Tinker](examples/rllm/README.md) | {install()} \
| `from cw_grpo import CWGRPOAgentTrainer as AgentTrainer` \
| CPU: its functions, without the service | its verl and Fireworks backends, `async_training` |

[Of the commands that the frameworks publish](tests/benchmarks/README.md#published-commands), \
this line works in 89 of 105 for verl (13 are refused), 98 of 103 for SkyRL, 5 of 5 for OpenRLHF, 23 of 26 for TRL, \
29 of 48 for ms-swift (19 are refused), and 12 of 17 for Axolotl (5 are refused).
"""


def text() -> str:
    """How to install, the table, and what share of published commands the line serves."""
    return (FROM_PYPI if IS_ON_PYPI else IN_A_CLONE) + TABLE


def main() -> None:
    readme = README.read_text(encoding="utf-8")
    marked = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not marked.search(readme):
        raise SystemExit(f"README.md has no place for the table; put {BEGIN.strip()} and {END} where it belongs")
    README.write_text(marked.sub(lambda _: BEGIN + text() + END, readme), encoding="utf-8")


if __name__ == "__main__":
    main()
