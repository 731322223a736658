"""What becomes of the training commands that a framework publishes, when one line is changed.

    python tests/benchmarks/published_commands.py verl CLONE [--reasons]

CLONE is a clone of the framework, or of its examples. Its scripts run with stand-ins for python, ray and the others,
which keep the commands (tests/tools/captured_commands.py). Of those that train with prompt groups, the line of
README's table is changed, and the framework's own code and this package's checks say what comes of it; for that, start
this in an environment that has the framework. Read scripts of strangers before you run this, or use a container.
Prints Markdown.
"""

import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from enum import Enum
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from captured_commands import captured
from published import Outcome, Verdict

Host = Enum("Host", {name: name for name in ("verl", "skyrl", "openrlhf", "trl", "swift", "axolotl")}, type=str)


def main(
    host: Annotated[Host, typer.Argument(help="The framework.")],
    clone: Annotated[Path, typer.Argument(help="A clone of it.", exists=True, file_okay=False)],
    scripts: Annotated[str, typer.Option(help="Which of its files, such as 'recipe/**/*.sh', if not all.")] = "",
    reasons: Annotated[
        bool, typer.Option("--reasons", help="Print why, for every command that does not work.")
    ] = False,
    require: Annotated[float, typer.Option(help="Fail if less than this share works or is refused.")] = 0,
) -> None:
    """Print the table."""
    of_host = import_module(f"published.{host.value}")
    patterns = [scripts] if scripts else of_host.SCRIPTS
    files = [path.relative_to(clone) for pattern in patterns for path in sorted(clone.glob(pattern))]
    verdicts: list[tuple[Path, Verdict]] = []
    with captured(clone, files) as commands, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        for script, of_script in commands.items():
            judged = [of_host.judge(command) for command in of_script]
            verdicts += [(script, verdict) for verdict in judged if verdict]
    count = Counter(verdict.outcome for _, verdict in verdicts)
    composed = len(verdicts) - count[Outcome.BROKEN]
    served = count[Outcome.WORKS] + count[Outcome.REFUSED]
    print(f"{len(files)} scripts start {sum(map(len, commands.values()))} commands, {len(verdicts)} with groups:\n")
    print(f"| {' | '.join(outcome.value for outcome in Outcome)} |\n|{'---:|' * len(Outcome)}")
    print(f"| {' | '.join(str(count[outcome]) for outcome in Outcome)} |\n")
    print(f"Of the {composed} that compose, {served} work or are refused ({served / max(composed, 1):.0%}).")
    for script, verdict in verdicts if reasons else []:
        if verdict.reason:
            print(f"- {script}: {verdict.outcome.value}: {verdict.reason}")
    for script in [script for script, of_script in commands.items() if reasons and not of_script]:
        print(f"- {script}: starts nothing")
    if count[Outcome.SILENT] or served < require * composed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
