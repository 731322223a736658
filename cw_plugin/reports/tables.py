"""The paper's Tables 1 to 5 for your own runs, and writing a table as Markdown, HTML, LaTeX and CSV."""

from __future__ import annotations

import csv
import html
import io
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cw_plugin.data.sources import SOURCES
from cw_plugin.reports import paper
from cw_plugin.reports.distribution import Distribution
from cw_plugin.reports.evaluations import BENCHMARKS, Evaluation
from cw_plugin.reports.runs import Run
from cw_plugin.reports.seeds import asked_differently, check_evaluations, setting
from cw_plugin.reports.statistics import Values, average, between_seeds, paired_difference, score

REPORTED = "reported"
FEW = 10  # tokens; fewer than these say little about the extremes


@dataclass(frozen=True)
class Table:
    """Cells as they are shown; the first column names the row."""

    name: str  # of its files
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "|---|" + "---:|" * (len(self.header) - 1)
        parts = [f"**{self.title}**", "", line(self.header), rule, *map(line, self.rows)]
        return "\n".join([*parts, "", *(f"{note}  " for note in self.notes)]).rstrip() + "\n"

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(_tex, cells)) + r" \\"

        body = [line(self.header), r"\midrule", *map(line, self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"\toprule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{_tex(' '.join([self.title + '.', *self.notes]))}}}",
                r"\end{table}",
                "",
            ]
        )

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        head = f"<caption>{html.escape(self.title)}</caption><thead>{line(self.header, 'th')}</thead>"
        return f"<div class=table><table>{head}<tbody>\n{body}\n</tbody></table>{notes}</div>"


def without_reported(table: Table) -> Table:
    """A table of another model than the paper's has no column of the paper's numbers."""
    kept = [index for index, head in enumerate(table.header) if REPORTED not in head]
    header, *rows = ([cells[index] for index in kept] for cells in [table.header, *table.rows])
    return replace(table, header=header, rows=rows)


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≥": r"$\ge$"}
_TEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def _points(value: float) -> str:
    return f"{value:+.1f}"


def shown_benchmark(benchmark: str) -> str:
    return BENCHMARKS.get(benchmark, benchmark)


def benchmarks_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """The benchmarks that were asked; the paper's come first, in its order."""
    asked = dict.fromkeys(itertools.chain.from_iterable(evaluation.accuracy for evaluation in evaluations))
    return [name for name in BENCHMARKS if name in asked] + sorted(name for name in asked if name not in BENCHMARKS)


def merge_seeds(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Join evaluations of the same name and step (seeds of one method): a question gets the answers of all of them.

    Raises:
        ReportError: their settings differ, or one of them is given twice.
    """
    merged: dict[tuple[str, int | None], list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        merged[evaluation.name, evaluation.step].append(evaluation)
    result = []
    for (name, _), several in merged.items():
        check_evaluations(name, several)
        accuracy: dict[str, dict[str, list[float]]] = {}
        for evaluation in several:
            for benchmark, answers in evaluation.accuracy.items():
                questions = accuracy.setdefault(benchmark, defaultdict(list))
                for question, given in answers.items():
                    questions[question].extend(given)
        unfinished = tuple(dict.fromkeys(name for evaluation in several for name in evaluation.unfinished))
        of_runs = tuple(several) if len(several) > 1 else several[0].of_runs
        result.append(replace(several[0], accuracy=accuracy, unfinished=unfinished, of_runs=of_runs))
    return result


def at_step(evaluations: Sequence[Evaluation], step: int | None = None) -> list[Evaluation]:
    """One evaluation for each name: that of ``step``, or of its last step; a model without steps has only one."""
    chosen: dict[str, Evaluation] = {}
    for evaluation in merge_seeds(evaluations):
        if evaluation.step is None or step in (None, evaluation.step):
            held = chosen.get(evaluation.name)
            if held is None or (evaluation.step or 0) >= (held.step or 0):
                chosen[evaluation.name] = evaluation
    return list(chosen.values())


def base_first(evaluations: Sequence[Evaluation], base: str | None = None) -> list[Evaluation]:
    """Put first the evaluation that the others are compared with: the one named ``base``, or the untrained model."""
    return sorted(evaluations, key=lambda each: each.name != base if base is not None else each.step is not None)


def table_2(evaluations: Sequence[Evaluation], paper_model: str | None = None) -> Table:
    """pass@1 of each method on each benchmark, average, and difference to the first one, the base model."""
    columns = benchmarks_of(evaluations)
    reference = evaluations[0]
    header = ["method", *map(shown_benchmark, columns), "average", "to base"]
    rows = []
    notes = [
        "Per cent right, (right / answers), [95% interval by question]. To base: * p < 0.05, paired test by question. "
        "Intervals and test are of these checkpoints; what another seed would give is not part of them.",
        *asked_differently(evaluations),
    ]
    reference_mean = None
    for evaluation in evaluations:
        scores = {name: score(evaluation.accuracy[name]) for name in columns if name in evaluation.accuracy}
        cells = [
            f"{100 * s.mean:.1f} ({s.correct}/{s.answers}) [{100 * s.low:.1f}, {100 * s.high:.1f}]" if s else "-"
            for s in map(scores.get, columns)
        ]
        label = evaluation.name if evaluation.step is None else f"{evaluation.name}, step {evaluation.step}"
        if len(scores) < len(columns):
            rows.append([label, *cells, "-", "-"])
            continue
        mean, low, high = average([evaluation.accuracy[name] for name in columns])
        difference = ""
        if evaluation is reference:
            reference_mean = mean
        elif reference_mean is not None:
            ours, theirs = ([each.accuracy[name] for name in columns] for each in (evaluation, reference))
            value, p = paired_difference(ours, theirs)
            difference = _points(100 * value) + ("*" if p < 0.05 else "")
        rows.append([label, *cells, f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]", difference])
    for evaluation in evaluations:
        if evaluation.unfinished:
            names = ", ".join(map(shown_benchmark, evaluation.unfinished))
            notes.append(f"{evaluation.name} is not finished on {names}: run the evaluation again to complete it.")
        times = sum(each.settings.get("interruptions", 0) for each in evaluation.of_runs or (evaluation,))
        if times:
            notes.append(
                f"{evaluation.name}: the evaluation was interrupted {times} time{'s' * (times > 1)}, and the answers "
                "that were being generated were lost and generated anew. Those are mostly long, and long answers are "
                "wrong more often, so pass@1 may be too high."
            )
    for model, methods in paper.TABLE_2.items():
        if paper_model not in (model, "all") or not set(columns) <= set(methods["base"]):
            continue
        average_of = {name: np.mean([values[column] for column in columns]) for name, values in methods.items()}
        for name, values in methods.items():
            to_base = "" if name == "base" else _points(average_of[name] - average_of["base"])
            label = f"{model if name == 'base' else name} ({REPORTED})"
            rows.append([label, *(f"{values[column]:.1f}" for column in columns), f"{average_of[name]:.1f}", to_base])
    return Table("table2", "Table 2: zero-shot pass@1", header, rows, notes)


def differences(evaluations: Sequence[Evaluation]) -> Table:
    """Every pair: difference in points, and a p-value. Over seeds' scores if both have several seeds, which compares
    methods; else by question, which compares checkpoints."""
    columns = benchmarks_of(evaluations)
    rows = []
    for theirs, ours in itertools.combinations(evaluations, 2):
        cells, test = [], "-"
        both = [name for name in columns if name in ours.accuracy and name in theirs.accuracy]
        for chosen in (*([name] for name in columns), both):
            if not set(chosen) <= set(both) or not chosen:
                cells.append("-")
                continue
            if found := between_seeds(seed_scores(ours, chosen), seed_scores(theirs, chosen)):
                value, p, test = found.value, found.p, found.sample
            else:
                value, p = paired_difference([ours.accuracy[n] for n in chosen], [theirs.accuracy[n] for n in chosen])
                test = "by question"
            cells.append(f"{_points(100 * value)} (p {p:.2g})")
        rows.append([f"{ours.name} - {theirs.name}", *cells, test])
    notes = [
        "Points, and the two-sided p-value, not corrected for the number of tests. By seed: a t-test over the seeds' "
        "scores, paired if both methods have the same seeds, else Welch's. It compares methods.",
        "By question: McNemar's exact test, or a sign-flip permutation test. It compares checkpoints, and says nothing "
        "of another seed.",
    ]
    header = ["methods", *map(shown_benchmark, columns), "average", "test"]
    return Table("differences", "Differences between methods", header, rows, notes)


def seed_scores(evaluation: Evaluation, benchmarks: Sequence[str]) -> Values:
    """For each run of an evaluation of several seeds, its seed and its average over the benchmarks."""
    return [
        (each.seed, float(np.mean([score(each.accuracy[name]).mean for name in benchmarks])))
        for each in evaluation.of_runs or (evaluation,)
        if set(benchmarks) <= each.accuracy.keys()
    ]


def table_3(evaluations: Sequence[Evaluation], runs: Sequence[Run], paper_rows: bool = False) -> Table:
    """Every checkpoint: pass@1, and the policy's entropy at that step."""
    trained = [evaluation for evaluation in merge_seeds(evaluations) if evaluation.step is not None]
    columns = benchmarks_of(trained)
    rows = []
    names = list(dict.fromkeys(evaluation.name for evaluation in trained))  # in the order given
    for evaluation in sorted(trained, key=lambda evaluation: (names.index(evaluation.name), evaluation.step)):
        scores = [evaluation.accuracy.get(name) for name in columns]
        shown = [_brief(answers) if answers else "-" for answers in scores]
        entropies = [run.metrics.get("actor/entropy", {}) for run in runs if run.name == evaluation.name]
        known = [series[evaluation.step] for series in entropies if evaluation.step in series]
        entropy = f"{np.mean(known):.3f}" if known else "-"
        rows.append([evaluation.name, str(evaluation.step), entropy, *shown])
    if paper_rows and {"math500", "olympiadbench"} <= set(columns):
        for name, step, entropy, *values in paper.TABLE_3:
            reported = dict(zip(("math500", "olympiadbench"), values, strict=True))
            cells = [f"{reported[column]:.1f}" if column in reported else "-" for column in columns]
            rows.append([f"{name} ({REPORTED})", str(step), entropy or "-", *cells])
    header = ["method", "step", "entropy", *map(shown_benchmark, columns)]
    return Table(
        "table3",
        "Table 3: checkpoints, and the policy's entropy there",
        header,
        rows,
        ["Per cent right, (right / answers)."],
    )


def _brief(answers: Mapping[str, Sequence[float]]) -> str:
    found = score(answers)
    return f"{100 * found.mean:.1f} ({found.correct}/{found.answers})"


def table_4(evaluations: Sequence[Evaluation]) -> Table:
    """What was evaluated, and how it was asked."""
    rows = []
    for name in benchmarks_of(evaluations):
        asked = [evaluation for evaluation in evaluations if name in evaluation.accuracy]
        questions = sorted({len(evaluation.accuracy[name]) for evaluation in asked})
        answers = sorted({sum(map(len, e.accuracy[name].values())) / len(e.accuracy[name]) for e in asked})
        how = [{e.settings.get(key) for e in asked} for key in ("temperature", "top_p", "max_response_length")]
        path = SOURCES[name].path if name in SOURCES else "-"
        cells = [", ".join(sorted(map(str, values - {None}))) or "-" for values in how]
        rows.append([shown_benchmark(name), path, _listed(questions), _listed(answers), *cells])
    header = ["benchmark", "Hugging Face path", "questions", "answers each", "temperature", "top p", "max. tokens"]
    return Table("table4", "Table 4: data as it was used", header, rows)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


_A = "actor_rollout_ref.actor."
_R = "actor_rollout_ref.rollout."

# Row of Table 5, where verl keeps it, and the paper's value.
_SETTINGS = (
    ("model", "actor_rollout_ref.model.path", ""),
    ("advantage estimator", "algorithm.adv_estimator", ""),
    ("cw_grpo: scope", "algorithm.cw_grpo.scope", ""),
    ("cw_grpo: kernel", "algorithm.cw_grpo.kernel", ""),
    ("policy loss", f"{_A}policy_loss.loss_mode", ""),
    ("learning rate", f"{_A}optim.lr", "1e-06"),
    ("prompts per step", "data.train_batch_size", "12"),
    ("prompts per update", f"{_A}ppo_mini_batch_size", ""),
    ("training steps", "trainer.total_training_steps", "100"),
    ("warm-up ratio", f"{_A}optim.lr_warmup_steps_ratio", "0.1"),
    ("max. prompt length", "data.max_prompt_length", "512"),
    ("max. completion length", "data.max_response_length", "4096"),
    ("temperature", f"{_R}temperature", "0.7"),
    ("generations per prompt", f"{_R}n", "12"),
    ("loss aggregation", f"{_A}loss_agg_mode", ""),
    ("KL loss", f"{_A}use_kl_loss", ""),
    ("KL coefficient", f"{_A}kl_loss_coef", ""),
)


_CW_GRPO = 5  # rows down to the policy loss


def _estimator(estimator: str, scope: str, kernel: str, loss: str) -> tuple[str, str, str, str]:
    """Advantage estimator, scope, kernel and policy loss as they are: with defaults, and GRPO by its name."""
    if loss == "cw_grpo":
        return estimator, "micro-batch", "gaussian", loss
    if estimator == "cw_grpo":
        scope, kernel = ("group" if scope == "-" else scope), ("gaussian" if kernel == "-" else kernel)
        estimator = "grpo (cw_grpo with kernel=none)" if kernel == "none" else estimator
    return estimator, scope, kernel, loss


def last_parts(path: str) -> str:
    """A path's last two parts: more of it pushes the values off a narrow page."""
    return path if path.count("/") < 2 else "…/" + "/".join(path.rstrip("/").split("/")[-2:])


def table_5(configs: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Hyperparameters of every run, from the configuration that it was started with.

    Runs of one name that were started alike share a column.
    """

    def value(config: Mapping[str, Any], key: str) -> str:
        found = setting(config, key)
        return "-" if found is None else str(found)

    columns: list[tuple[str, list[str]]] = []
    for name, config in configs:
        values = [value(config, key) for _, key, _ in _SETTINGS]
        values[:_CW_GRPO] = [last_parts(values[0]), *_estimator(*values[1:_CW_GRPO])]
        if value(config, f"{_A}use_kl_loss") == "False":
            values[-1] = "-"  # the coefficient of nothing
        if (name, values) not in columns:
            columns.append((name, values))
    rows = [
        [label, *cells, given] for (label, _, given), *cells in zip(_SETTINGS, *(v for _, v in columns), strict=True)
    ]
    notes = ["The paper also gives gradient accumulation over 4 steps; examples/README.md says what that is in verl."]
    names = [name for name, _ in columns]
    if len(set(names)) < len(names):
        notes.append("Runs of one name that differ here have a column each.")
    return Table("table5", "Table 5: hyperparameters", ["", *names, f"paper ({REPORTED})"], rows, notes)


def table_1(name: str, distribution: Distribution) -> Table:
    """Covariance at a percentile, in both senses of the paper's wording."""
    positive, negative = distribution.side(1), distribution.side(-1)
    rows = []
    for share, up, down in paper.TABLE_1:
        cells = [*positive.at(share), *(-value for value in negative.at(share))]
        shown = ["-" if np.isnan(value) else f"{value:.3g}" for value in cells]
        rows.append([f"{share:.2%}", *shown, f"{up:.2f}", f"{down:.2f}"])
    header = ["most extreme", "positive ≥", "positive mean", "negative ≥", "negative mean"]
    header += [f"positive ({REPORTED})", f"negative ({REPORTED})"]
    counts = [of_side.tokens[-1] if len(of_side.tokens) else 0 for of_side in (positive, negative)]
    notes = [
        "For each share of tokens with the most extreme covariance: the threshold (≥), and the mean beyond it.",
        f"{name}: {counts[0]} tokens of positive covariance, {counts[1]} of negative.",
    ]
    few = [f"{share:.2%}" for share, *_ in paper.TABLE_1 if share * min(counts) < FEW]
    if few:
        notes.append(f"Based on fewer than {FEW} tokens, so mostly chance: {', '.join(few)}.")
    return Table("table1", f"Table 1: token-level covariance, {name}", header, rows, notes)
