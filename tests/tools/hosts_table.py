"""README's table of hosts, and how to install: python tests/tools/hosts_table.py writes both into README.md.

The releases are those of cw_plugin/hosts/host.py, so that the table cannot promise others than the error messages do.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from cw_plugin.hosts import host
from cw_plugin.hosts.host import AGENT_LIGHTNING, TINKER_COOKBOOK
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
HEAD = "| framework | install | the line that changes | where it ran | refused |\n|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """A framework, or a program that trains with one.

    Attributes:
        name: with its releases.
        extra: of this package, if it needs one.
        line: what changes in the command or script.
        ran: hardware and processes of the tests and runs.
        refused: what is not supported, shortest; the page has all of it.
        page: the page about it.
    """

    name: str
    extra: str
    line: str
    ran: str
    refused: str
    page: str

    def __str__(self) -> str:
        package = "cw-plugin" if IS_ON_PYPI else "."
        package = f'"{package}[{self.extra}]"' if self.extra else package
        cells = (f"[{self.name}]({self.page})", f"`pip install {package}`", self.line, self.ran, self.refused)
        return "| " + " | ".join(cells) + " |\n"


def released(of: host.Host) -> str:
    return f"{of.name} {of.tested}"


ROWS = (
    Row(
        released(host.VERL),
        "",
        "`algorithm.adv_estimator=cw_grpo`",
        "CPU: FSDP2 and Megatron, 2 ranks; a step on an H200",
        "`loss_mode=geo_mean`, `rollout.n=1`",
        "cw_plugin/hosts/verl/README.md",
    ),
    Row(
        released(host.TRL),
        "trl",
        "`from cw_plugin.hosts.trl import CWGRPOConfig as GRPOConfig, CWGRPOTrainer as GRPOTrainer`",
        "CPU: 3 processes; an H200",
        "sequence-level ratios, Liger's loss",
        "examples/trl/README.md",
    ),
    Row(
        "Axolotl 0.21, which trains with TRL",
        "",
        "`plugins: [cw_grpo.CWGRPOPlugin]`",
        "CPU: its classes, 1 process",
        "`async_prefetch`, context parallelism",
        "examples/axolotl/README.md",
    ),
    Row(
        released(host.SWIFT),
        "swift",
        "`--external_plugins CLONE/examples/swift/plugin.py`",
        "CPU: 2 processes",
        "its Megatron trainer, sequence parallelism, a teacher",
        "examples/swift/plugin.py",
    ),
    Row(
        released(host.OPENRLHF),
        "",
        "`python3 -m cw_plugin.hosts.openrlhf` for `openrlhf.cli.train_ppo_ray`",
        "CPU: 2 actors",
        "a KL penalty in the reward",
        "examples/openrlhf/README.md",
    ),
    Row(
        released(host.SKYRL),
        "",
        "`python3 -m cw_plugin.hosts.skyrl PROGRAM` for `python3 -m PROGRAM`",
        "CPU: 2 workers",
        "normalising reweighted advantages again",
        "examples/skyrl/README.md",
    ),
    Row(
        released(host.TRINITY),
        "",
        "`advantage_fn: cw_plugin.hosts.trinity.CWGRPOAdvantage`",
        "CPU: its pipeline and losses",
        "algorithms whose trainer computes advantages",
        "cw_plugin/hosts/trinity/README.md",
    ),
    Row(
        f"agent-lightning {AGENT_LIGHTNING}, which trains with verl",
        "",
        "`algorithm.adv_estimator=cw_grpo`",
        "CPU: a step of its trainer, without workers",
        "as with verl",
        "cw_plugin/hosts/verl/README.md",
    ),
    Row(
        f"Tinker cookbook {TINKER_COOKBOOK}",
        "",
        "`train.assemble_training_data = cw_grpo.assemble_training_data`",
        "CPU: its data, without the service",
        "options, records",
        "examples/tinker/README.md",
    ),
    Row(
        "rLLM 0.3.0, with Tinker",
        "",
        "`from cw_grpo import CWGRPOAgentTrainer as AgentTrainer`",
        "CPU: its functions, without the service",
        "its verl and Fireworks backends, `async_training`",
        "examples/rllm/README.md",
    ),
)


# Measured by tests/benchmarks/published_commands.py, whose page says of which commits.
PUBLISHED = """
[Of the commands that the frameworks publish](tests/benchmarks/README.md#published-commands), \
this line works in 89 of 105 for verl (13 are refused), 98 of 103 for SkyRL, 5 of 5 for OpenRLHF, 23 of 26 for TRL, \
29 of 48 for ms-swift (19 are refused), and 12 of 17 for Axolotl (5 are refused).
"""


def table() -> str:
    """How to install, the table, and what share of published commands the line serves."""
    return (FROM_PYPI if IS_ON_PYPI else IN_A_CLONE) + HEAD + "".join(map(str, ROWS)) + PUBLISHED


def main() -> None:
    text = README.read_text(encoding="utf-8")
    marked = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not marked.search(text):
        raise SystemExit(f"README.md has no place for the table; put {BEGIN.strip()} and {END} where it belongs")
    README.write_text(marked.sub(lambda _: BEGIN + table() + END, text), encoding="utf-8")


if __name__ == "__main__":
    main()
