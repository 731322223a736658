"""The console script ``cw-grpo``."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cw_plugin.data.sources import SOURCES
from cw_plugin.errors import CWGRPOError

if TYPE_CHECKING:
    from cw_plugin.data.prepare import Prepared

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Name = Enum("Name", {name: name for name in (*SOURCES, "all")}, type=str)  # type: ignore[misc]

SHOWN = 10  # findings of one file on the terminal; its report has all of them


@app.callback()
def main() -> None:
    """Tools around CW-GRPO for verl."""


@app.command()
def prepare(
    name: Annotated[Name, typer.Argument(help="Which data.", show_default=False)],
    local_save_dir: Annotated[
        Path,
        typer.Option("--local_save_dir", help="Where the files go: open_rs/train.parquet, aime24/test.parquet, ..."),
    ] = Path("~/data/cw_grpo"),
    local_dataset_path: Annotated[
        Path | None,
        typer.Option(
            "--local_dataset_path",
            help="A folder with copies under the hub's names, e.g. knoveleng/open-rs/train.jsonl. Default: the hub.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of the dataset on the hub.")] = None,
    prompt: Annotated[
        str,
        typer.Option(
            help="open-rs (the paper's system turn), none, lighteval (its AIME task's, from the installed package), or "
            "a text file: the user turn if it has {question} in it, else the system turn."
        ),
    ] = "open-rs",
    split: Annotated[str | None, typer.Option(help="Another split of the dataset than the paper's.")] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept another number of rows than the paper's data has.")
    ] = False,
    drop_failing: Annotated[
        bool, typer.Option("--drop-failing", help="Leave training rows out that repeat a problem or cannot be graded.")
    ] = False,
    drop_contaminated: Annotated[
        bool, typer.Option("--drop-contaminated", help="Leave training rows out whose problem stands in a benchmark.")
    ] = False,
) -> None:
    """Write Open-RS or benchmarks as parquet files for verl, after checking every row.

    Nothing is written unless all that was asked for could be loaded and has the right rows and columns. Rows that
    repeat a problem, cannot be graded, or stand in a benchmark are listed here and in a report beside each file.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    errors = Console(stderr=True, soft_wrap=True)
    try:  # loading these takes a second, which --help should not
        from cw_plugin.data.prepare import Options
        from cw_plugin.data.prepare import prepare as run
        from cw_plugin.data.prompts import select_prompt
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; pip install 'cw-plugin[data]' brings what preparing data needs."
        errors.print(f"[red]Error:[/red] {escape(message)}", highlight=False)
        raise typer.Exit(2) from None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        options = Options(
            save_dir=local_save_dir.expanduser(),
            prompt=select_prompt(prompt),
            dataset_path=local_dataset_path.expanduser() if local_dataset_path else None,
            revision=revision,
            split=split,
            allow_partial=allow_partial,
            drop_failing=drop_failing,
            drop_contaminated=drop_contaminated,
        )
        sources = list(SOURCES.values()) if name.value == "all" else [SOURCES[name.value]]
        with Progress(*columns, console=errors) as progress:
            prepared = run(sources, options, progress)
    except CWGRPOError as error:
        errors.print(f"[red]Error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None
    for item in prepared:
        _report(item, errors)
        typer.echo(item.path)


@app.command(context_settings={"ignore_unknown_options": True})
def doctor(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hydra overrides as for main_ppo, or one of the recipes (examples/run_*.sh) and overrides."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    ray: Annotated[bool, typer.Option(help="Start Ray, or join the cluster, and ask its workers too.")] = True,
) -> None:
    """Say what is wrong with a run, before Ray starts and a GPU is taken.

    Exit code 1 if something would make the run fail or train something else, 2 if the settings cannot be composed.
    """
    errors = Console(stderr=True, soft_wrap=True)
    try:
        from cw_plugin.doctor import compose, examine
    except ModuleNotFoundError as error:
        errors.print(f"[red]Error:[/red] {error.name} is not installed; install verl 0.9.1 first.", highlight=False)
        raise typer.Exit(2) from None
    try:
        config = compose(run or [])
    except CWGRPOError as error:
        errors.print(f"[red]Error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None
    findings = sorted(examine(config, ray=ray), key=lambda finding: not finding.fatal)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    console = Console(soft_wrap=True, quiet=as_json)
    for finding in findings:
        colour, label = ("red", "Wrong") if finding.fatal else ("yellow", "Note")
        console.print(f"[{colour}]{label}[/{colour}] {escape(f'[{finding.check}] {finding.what}')}", highlight=False)
        console.print(escape(f"      why: {finding.why}"), highlight=False)
        console.print(escape(f"      mend: {finding.mend}"), highlight=False)
    fatal = sum(finding.fatal for finding in findings)
    console.print(f"{fatal} wrong, {len(findings) - fatal} to note", highlight=False)
    raise typer.Exit(1 if fatal else 0)


def _report(item: Prepared, console: Console) -> None:
    def say(text: str) -> None:
        console.print(escape(text), highlight=False)

    dropped = f", {len(item.dropped)} left out" if item.dropped else ""
    say(f"{item.source.path}, split {item.split}: {item.table.num_rows} rows{dropped}")
    findings = [f"row {failure.row}: {failure.reason}" for failure in item.failures]
    if item.source.training:
        rows = {leak.row for leak in item.leaks}
        exact = {leak.row for leak in item.leaks if leak.exact}
        per_benchmark = Counter(leak.benchmark for leak in item.leaks)
        where = "; " + ", ".join(f"{count} in {name}" for name, count in per_benchmark.items()) if rows else ""
        say(f"  {len(rows)} training problems also stand in a benchmark, {len(exact)} of them word for word{where}")
        for leak in item.leaks:
            how_much = "equal to" if leak.exact else f"{leak.share:.0%} of"
            findings.append(f"row {leak.row}: {how_much} {leak.benchmark} {leak.benchmark_row}")
    for name, reason in item.unchecked.items():
        say(f"  not compared with {name}: {reason}")
    for finding in findings[:SHOWN]:
        say(f"  {finding}")
    if len(findings) > SHOWN:
        say(f"  ... and {len(findings) - SHOWN} more in {item.path.with_suffix('.report.json')}")


if __name__ == "__main__":
    app()
