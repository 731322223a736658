"""The console script ``cw-grpo``."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from cw_plugin import __version__
from cw_plugin.errors import CWGRPOError
from cw_plugin.lab.arguments import expanded
from cw_plugin.lab.data.sources import BENCHMARKS, SOURCES
from cw_plugin.lab.errors import how_to_install

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_DATA = Path("~/data/cw_grpo")  # where prepare writes, and evaluate reads

Name = Enum("Name", {name: name for name in (*SOURCES, "all")}, type=str)  # type: ignore[misc]


@contextmanager
def _errors(to_install: str) -> Iterator[None]:
    """For errors that the user can fix: print one sentence on stderr and exit with code 2, without a traceback."""
    try:
        yield
    except (CWGRPOError, ModuleNotFoundError) as error:
        message = f"{error.name} is not installed; {to_install}" if isinstance(error, ImportError) else str(error)
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]Error:[/red] {escape(message)}")
        raise typer.Exit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cw-plugin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version)] = False,
) -> None:
    """Tools for CW-GRPO with verl, TRL, ms-swift, OpenRLHF and SkyRL."""


@app.command()
def prepare(
    name: Annotated[Name, typer.Argument(help="The dataset.", show_default=False)],
    local_save_dir: Annotated[Path, typer.Option(help="Folder for open_rs/train.parquet and the others.")] = _DATA,
    local_dataset_path: Annotated[
        Path | None, typer.Option(help="Folder with copies of the datasets. Default: the hub.", show_default=False)
    ] = None,
    prompt: Annotated[str, typer.Option(help="open-rs (the paper's system prompt), none, or a text file.")] = "open-rs",
    drop_failing: Annotated[bool, typer.Option("--drop-failing", help="Leave out rows that fail a check.")] = False,
    drop_contaminated: Annotated[
        bool, typer.Option("--drop-contaminated", help="Leave out rows whose problem is also in a benchmark.")
    ] = False,
) -> None:
    """Write Open-RS or the benchmarks as parquet files for verl.

    Local copies have the same names as on the hub, such as knoveleng/open-rs/train.jsonl. A --prompt file that contains
    {question} becomes the user's message; any other file becomes the system prompt. If a dataset cannot be loaded,
    nothing is written. Training rows without an answer are left out. Rows that repeat a problem, cannot be graded, or
    (with "all") are also in a benchmark are printed, and listed in a report beside each file. --drop-failing and
    --drop-contaminated leave these rows out of the training data.
    """
    with _errors(how_to_install("data")):
        from cw_plugin.lab.data.prepare import prepare as prepare_files  # takes a second, which --help should not
        from cw_plugin.lab.data.prompts import select_prompt
        from cw_plugin.lab.data.row_checks import CONTAMINATED, REPEATED, UNGRADABLE

        sources = list(SOURCES.values()) if name.value == "all" else [SOURCES[name.value]]
        copies = expanded(local_dataset_path) if local_dataset_path else None
        drop = [REPEATED, UNGRADABLE] if drop_failing else []
        if drop_contaminated:
            drop.append(CONTAMINATED)
        for path in prepare_files(sources, expanded(local_save_dir), select_prompt(prompt), copies, drop):
            typer.echo(path)


_IGNORE = {"ignore_unknown_options": True}  # what looks like an option may be hydra's; compose() names what is not
_VERL = "install verl first"
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", hidden=True)]


@app.command(context_settings=_IGNORE)
def config(run: Overrides = None) -> None:
    """Print the whole configuration that verl would train with.

    Give the whole command that you would start, or only its overrides, KEY=VALUE.
    """
    with _errors(_VERL):
        from omegaconf import OmegaConf

        from cw_plugin.lab.compose import compose

        typer.echo(OmegaConf.to_yaml(compose(run or []), resolve=True), nl=False)


@app.command(context_settings=_IGNORE)
def doctor(
    run: Overrides = None,
    file: Annotated[
        str | None, typer.Option("--config", help="A file with the whole configuration instead; - for standard input.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Check in seconds, and print only the first error.")] = False,
) -> None:
    """Check a run of verl before it occupies a GPU.

    Give the whole command that you would start, or only its overrides, KEY=VALUE. If a Ray cluster runs, the check
    asks its workers; it starts none. The exit code is 1 if the run would fail, or would not train what its settings
    say. It is 2 if verl refuses the settings, or if --quick finds an error.
    """
    with _errors(_VERL):
        from cw_plugin.lab.doctor import doctor as examine

        raise typer.Exit(examine(run or [], file, quick))


_REPORT = how_to_install("report")


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", hidden=True)],
    out: Annotated[Path, typer.Option(help="Folder for the page and the tables.")] = Path("report"),
) -> None:
    """Compare runs on one page, with the paper's tables and figures.

    RUN is the folder of a run or of an evaluation, or NAME=FOLDER. Runs with the same name count as seeds of
    one method. The command writes the page report.html, every table as CSV, and every figure as SVG and PDF.
    """
    out = expanded(out)
    with _errors(_REPORT):
        from cw_plugin.lab.reports.report import write_report

        written = write_report(runs, out)
    for note in written.notes:
        typer.echo(note, err=True)
    typer.echo("\n".join([*written.answers, ""]))
    differences = written.differences
    shown = [differences.text(), ""] if len(differences.frame) else []
    typer.echo("\n".join([*shown, *differences.notes, ""]))
    typer.echo(out / "report.html")


@app.command()
def tokens(
    run: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    out: Annotated[Path, typer.Option(help="File for the page.")] = Path("tokens.html"),
    steps: Annotated[
        str | None, typer.Option(help="One step, such as 50, or the first and the last, such as 1:100. Default: all.")
    ] = None,
) -> None:
    """Show every recorded token on one page, coloured by covariance.

    RUN is the folder of a run, or NAME=FOLDER. Any browser opens the page, even offline. On the page, the
    colour can show the weight instead.
    """
    out = expanded(out)
    with _errors(_REPORT):
        from cw_plugin.lab.reports.read_records import parse_steps
        from cw_plugin.lab.reports.tokens import write_token_page

        write_token_page(run, out, parse_steps(steps) if steps else None)
    typer.echo(out)


_DEMO = Path(__file__).with_name("reports") / "demo"


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("demo")) -> None:
    """Write the report and the token page of two recorded runs: without a model, a GPU or verl.

    The runs are the CPU quickstart's, with GRPO and with CW-GRPO, one seed each. Open the pages in a browser.
    """
    report([str(_DEMO / name) for name in ("grpo", "cw_grpo")], out)
    tokens(f"CW-GRPO={_DEMO / 'cw_grpo'}", out / "tokens.html", None)


class _WithOverrides(TyperCommand):
    """A command whose arguments after ``--`` are overrides of verl; they are in the context, as meta["overrides"]."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["overrides"] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(cls=_WithOverrides)
def evaluate(
    context: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", hidden=True)] = None,
    out: Annotated[Path, typer.Option(help="Folder for the answers: MODEL/aime24.jsonl, ...")] = Path("evaluation"),
    data_dir: Annotated[Path, typer.Option(help="Folder that cw-grpo prepare wrote.")] = _DATA,
    benchmarks: Annotated[
        str, typer.Option(help="Names, separated by spaces. NAME=FILE.parquet adds a file of your own.")
    ] = " ".join(source.name for source in BENCHMARKS),
) -> None:
    """Measure pass@1 of models and checkpoints on benchmarks, and pass@k if questions are asked several times.

    MODEL is a name on the Hugging Face hub, the folder of a model, of a checkpoint of verl (global_step_*) or of a run,
    or NAME=FOLDER. verl's overrides follow at the end, after --: cw-grpo evaluate MODEL -- KEY=VALUE. verl's own
    validation asks each question without examples, and grades the answers. A benchmark that already has its answers is
    not asked again.
    """
    from cw_plugin.hosts.host import VERL

    out = expanded(out)
    with _errors(f"install verl {VERL.newest}, and {how_to_install('data,report')}"):
        from cw_plugin.lab.evaluation.ask import evaluate as ask
        from cw_plugin.lab.evaluation.graded_answers import read_answers
        from cw_plugin.lab.evaluation.models import find_models
        from cw_plugin.lab.evaluation.scores import answers_frame, base_or_first
        from cw_plugin.lab.reports.tables import many_answers_tables

        files = {}
        for benchmark in benchmarks.split():
            name, _, file = benchmark.partition("=")
            files[name] = expanded(file or data_dir / name / "test.parquet").absolute()
        asked = find_models(models or [])
        ask(asked, files, out, context.meta["overrides"])
        read = [read_answers(out / model.name) for model in asked]
        graded = answers_frame([each for answers, _ in read for each in answers if each.benchmark in files])
        for table in many_answers_tables(graded, [base_or_first(graded)]):
            typer.echo("\n".join(["", table.title, table.text(), *table.notes]))
