"""The console script ``cw-grpo``."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cw_plugin import __version__
from cw_plugin.data.sources import SOURCES
from cw_plugin.errors import CWGRPOError, how_to_install
from cw_plugin.files import expanded
from cw_plugin.reports.paper import TABLE_2

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Name = Enum("Name", {name: name for name in (*SOURCES, "all")}, type=str)  # type: ignore[misc]
PaperModel = Enum("PaperModel", {name: name for name in (*TABLE_2, "all")}, type=str)  # type: ignore[misc]


class EngineName(str, Enum):
    """What generates and grades in ``cw-grpo evaluate``."""

    verl = "verl"
    vllm = "lighteval"
    accelerate = "lighteval-accelerate"


@contextmanager
def _errors(to_install: str) -> Iterator[None]:
    """For errors that the user can fix: print one sentence on stderr and exit with code 2, without a traceback."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        yield
    except CWGRPOError as error:
        errors.print(f"[red]Error:[/red] {escape(str(error))}")
        raise typer.Exit(2) from None
    except ModuleNotFoundError as error:
        errors.print(f"[red]Error:[/red] {error.name} is not installed; {escape(to_install)}")
        raise typer.Exit(2) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cw-plugin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version)] = False,
) -> None:
    """Tools for CW-GRPO with verl and TRL."""


@app.command()
def prepare(
    name: Annotated[Name, typer.Argument(help="The dataset.", show_default=False)],
    local_save_dir: Annotated[
        Path,
        typer.Option("--local_save_dir", help="Folder for the files: open_rs/train.parquet, aime24/test.parquet, ..."),
    ] = Path("~/data/cw_grpo"),
    local_dataset_path: Annotated[
        Path | None,
        typer.Option(
            "--local_dataset_path",
            help="A folder with copies, named as on the hub: knoveleng/open-rs/train.jsonl. Default: the hub.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of the dataset on the hub.")] = None,
    prompt: Annotated[
        str,
        typer.Option(
            help="open-rs (the paper's system prompt), none, lighteval (the prompt of its AIME task, read from the "
            "installed package), or a text file: the user turn if it contains {question}, else the system prompt."
        ),
    ] = "open-rs",
    split: Annotated[
        str | None, typer.Option(help="Another split than the paper's; it is written to SPLIT.parquet.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a number of rows that differs from the paper's.")
    ] = False,
    drop_failing: Annotated[
        bool,
        typer.Option("--drop-failing", help="Leave out training rows that fail a check."),
    ] = False,
    drop_contaminated: Annotated[
        bool, typer.Option("--drop-contaminated", help="Leave out training rows whose problem is also in a benchmark.")
    ] = False,
) -> None:
    """Write Open-RS or benchmarks as parquet files for verl.

    Every row is checked first. Nothing is written unless every dataset could be loaded and has the right rows and columns. Rows that repeat a
    problem, cannot be graded, or are also in a benchmark are listed here and in a report beside each file.
    """
    with _errors(how_to_install("data")):
        from cw_plugin.data.prepare import PrepareOptions, prepare_files  # takes a second, which --help should not
        from cw_plugin.data.prompts import select_prompt

        options = PrepareOptions(
            save_dir=expanded(local_save_dir),
            prompt=select_prompt(prompt),
            dataset_path=expanded(local_dataset_path) if local_dataset_path else None,
            revision=revision,
            split=split,
            allow_partial=allow_partial,
            drop_failing=drop_failing,
            drop_contaminated=drop_contaminated,
        )
        sources = list(SOURCES.values()) if name.value == "all" else [SOURCES[name.value]]
        for path in prepare_files(sources, options):
            typer.echo(path)


Run = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides as for main_ppo, or a script (examples/*.sh) and overrides."),
]


@app.command(context_settings={"ignore_unknown_options": True})
def config(run: Run = None) -> None:
    """Print a run's configuration as verl's main_ppo would see it."""
    with _errors("install verl first."):
        from omegaconf import OmegaConf

        from cw_plugin.verl_integration.config import compose

        text = OmegaConf.to_yaml(compose(run or []), resolve=True)
    typer.echo(text, nl=False)


@app.command(context_settings={"ignore_unknown_options": True})
def doctor(
    run: Run = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    ray: Annotated[bool, typer.Option(help="Start Ray, or join the cluster, and ask its workers too.")] = True,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run only the fast checks (a second or two); report the first error."),
    ] = False,
) -> None:
    """Check a run before Ray starts and a GPU is taken.

    The exit code is 1 if the run would fail or train something else, and 2 if the settings cannot be composed, or if
    --quick finds an error.
    """
    with _errors("install verl first."):
        from cw_plugin.doctor import doctor as examine

        raise typer.Exit(examine(run or [], quick=quick, ask_ray=ray, as_json=as_json))


RunFolders = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs or evaluations, or NAME=FOLDER; folders with the same name are seeds of one method.",
        show_default=False,
    ),
]
_REPORTS = how_to_install("report")


@app.command()
def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder for the page and the tables.")] = Path("report"),
    base: Annotated[
        str | None,
        typer.Option(help="Show differences to this name. Default: the untrained model."),
    ] = None,
    step: Annotated[int | None, typer.Option(help="The step that Table 2 shows. Default: each method's last.")] = None,
    paper: Annotated[
        PaperModel | None, typer.Option(help="Add the paper's rows for this model, marked as reported.")
    ] = None,
) -> None:
    """Write the paper's tables and figures for your runs: one page of HTML, Markdown, CSV and LaTeX."""
    out = expanded(out)
    with _errors(_REPORTS):
        from cw_plugin.reports.report import write_report

        table, sentences, notes = write_report(runs, out, base, step, paper.value if paper else None)
    typer.echo(" ".join(sentences))
    if len(table.frame):
        typer.echo("\n".join(["", table.text(), *table.notes, ""]))
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(out / "report.html")


@app.command()
def tokens(
    run: Annotated[str, typer.Argument(help="Folder of a run, or NAME=FOLDER.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File for the page.")] = Path("tokens.html"),
    steps: Annotated[str | None, typer.Option(help="One step, or first and last as 1:50. Default: all.")] = None,
) -> None:
    """Write a page that shows every recorded token, coloured by covariance or weight, for any browser, offline."""
    with _errors(_REPORTS):
        from cw_plugin.reports.records import parse_steps
        from cw_plugin.reports.tokens import BIG, write_token_page

        size = write_token_page(run, expanded(out), parse_steps(steps))
    if size > BIG:
        typer.echo(f"the page has {size / 1e6:.0f} MB; fewer steps, as --steps 50, open faster", err=True)
    typer.echo(expanded(out))


# Hydra overrides, as opposed to paths and names on the hub: +key=value, ~key (which deletes it), key.key=value.
_OVERRIDE = re.compile(r"\+.*|~\w+(\.\w+)*(=.*)?|[a-z_]\w*(\.\w+)+=.*", re.DOTALL)


@app.command(context_settings={"ignore_unknown_options": True})
def evaluate(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hugging Face names or folders, verl's checkpoints (global_step_*) or folders of them; hydra "
            "overrides of verl can follow."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the answers: NAME/aime24.jsonl, ...")] = Path("evaluation"),
    data_dir: Annotated[Path, typer.Option(help="Folder that cw-grpo prepare wrote.")] = Path("~/data/cw_grpo"),
    benchmarks: Annotated[
        str,
        typer.Option(help="NAME, NAME@SAMPLES or NAME=FILE.parquet, separated by spaces. Default: the paper's five."),
    ] = "aime24 amc23 math500 minerva olympiadbench",
    n: Annotated[int, typer.Option(help="Samples per question.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.6,
    top_p: Annotated[float, typer.Option()] = 0.95,
    max_prompt: Annotated[int, typer.Option(help="Maximum length in tokens; longer prompts count as wrong.")] = 2048,
    max_response: Annotated[int, typer.Option(help="Maximum length in tokens.")] = 30720,
    seed: Annotated[int, typer.Option(help="Seed of vLLM.")] = 42,
    engine: Annotated[
        EngineName,
        typer.Option(help="lighteval: with vLLM; lighteval-accelerate: with accelerate."),
    ] = EngineName.verl,
    lighteval: Annotated[str, typer.Option(help="lighteval's executable, in any environment.")] = "lighteval",
) -> None:
    """Zero-shot pass@1 of models and checkpoints on benchmarks, by verl's own validation.

    Every graded answer is kept; the same command again asks only for the missing ones. The exit code is 2 if the input
    cannot be evaluated, and 1 if the engine stops before the last answer.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"[{minutes}:{seconds:02}] {text}", flush=True)

    arguments = models or []
    overrides = [text for text in arguments if _OVERRIDE.fullmatch(text) and not expanded(text).exists()]
    with _errors(f"install verl 0.9.1, and {how_to_install('data')}"):
        from cw_plugin.errors import EngineError, EvaluationError
        from cw_plugin.evaluation.benchmarks import read_benchmarks
        from cw_plugin.evaluation.engine import EvaluationOptions, Verl
        from cw_plugin.evaluation.lighteval_engine import Lighteval
        from cw_plugin.evaluation.run import evaluate as run

        options = EvaluationOptions(expanded(out), n, temperature, top_p, max_prompt, max_response, seed, overrides)
        try:
            specs = shlex.split(benchmarks)
        except ValueError as error:
            raise EvaluationError(
                f"--benchmarks {benchmarks}: {error}; put quotes around a path with a quote."
            ) from None
        chosen = read_benchmarks(specs, expanded(data_dir), n)
        backend = "accelerate" if engine is EngineName.accelerate else "vllm"
        asked = Verl(options) if engine is EngineName.verl else Lighteval(options, lighteval, backend)
        try:
            run([text for text in arguments if text not in overrides], chosen, asked, options, say)
        except EngineError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            say("stopped; graded answers are kept, run the same command again to continue")
            raise typer.Exit(130) from None


if __name__ == "__main__":
    app()
