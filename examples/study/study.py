"""Run the study, JOBS runs at a time (default 2); what was interrupted goes on.

    python examples/study/study.py            # a line for each run that ends

Runs are written to WORK (default runs/study), each with a progress.log, and gathered into metrics.parquet and
covariance.parquet of RESULTS (default WORK/results) as they finish; a run that RESULTS has is not done again. The
phases: a search for each method's learning rate, on problems of its own; the runs that are compared, five seeds of each
method, of which the first is the beginning of one long run of each; and the ablation, in which one part of the weights
is changed.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from cw_plugin.files import write_whole
from cw_plugin.lab.reports.read_records import PATTERN, read_tokens, tokens_of
from cw_plugin.lab.reports.runs import read_run
from cw_plugin.lab.result_files import files_in

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launcher"))
from processes import end_with_parent  # noqa: E402

WORK = Path(os.environ.get("WORK", HERE.parents[1] / "runs" / "study")).resolve()
RESULTS = Path(os.environ.get("RESULTS", WORK / "results")).resolve()

# What is compared, and the settings that the search tries besides the learning rate. Of an update's 670 tokens the
# authors' ratio 0.0002 is none, of which verl makes one.
METHODS = (
    ("grpo",), ("clip_cov",), ("clip_cov_0.005", "clip_cov_0.02"), ("cw_grpo",), ("cw_grpo_batch",), ("cw_grpo_loss",),
)  # fmt: skip
# At cw_grpo's learning rate; the batch scope is among them because it is compared at one of its own.
ABLATION = ("cw_grpo_batch", "cw_grpo_shuffled")
NAMES = {
    "grpo": "GRPO", "clip_cov": "Clip-Cov, authors' ratio", "clip_cov_0.005": "Clip-Cov, ratio 0.005",
    "clip_cov_0.02": "Clip-Cov, ratio 0.02", "cw_grpo": "CW-GRPO (prompt group)",
    "cw_grpo_batch": "CW-GRPO, batch", "cw_grpo_loss": "CW-GRPO, loss",
    "cw_grpo_uncentred": "without centring", "cw_grpo_unnormalised": "without normalisation",
    "cw_grpo_shuffled": "weights on random tokens",
}  # fmt: skip
LEARNING_RATES = ("1e-5", "3e-5", "1e-4")
SEEDS = (1, 2, 3, 4, 5)
STEPS, SEARCH_STEPS, LONG_STEPS = 200, 100, 1000
JOBS = int(os.environ.get("JOBS", "2"))  # runs at a time: one alone leaves cores idle

# Column of metrics.parquet -> metric of verl
COLUMNS = {
    "accuracy": "val-core/study/products/acc/mean@1", "reward": "critic/score/mean", "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm", "seconds": "timing_s/step", "covariance_before": "cw_grpo/covariance_before",
    "covariance_after": "cw_grpo/covariance_after",
    "rollout_difference": "training/rollout_probs_diff_max",  # of a token's probability in vLLM and in the trainer
}  # fmt: skip


class Job(NamedTuple):
    """One training run."""

    phase: str
    method: str
    lr: str
    seed: int
    steps: int

    @property
    def folder(self) -> Path:
        return WORK / self.phase / f"{self.method}-lr{self.lr}-seed{self.seed}"


KEY = list(Job._fields[:4])  # columns of metrics.parquet


def finished(key: list[str], file: str = "metrics") -> set[tuple]:
    """Of each run in RESULTS what the columns ``key`` have."""
    path = RESULTS / f"{file}.parquet"
    return set(pd.read_parquet(path)[key].itertuples(index=False, name=None)) if path.exists() else set()


def append(path: Path, rows: pd.DataFrame) -> None:
    """Add rows to a parquet file. It is replaced as a whole: an interruption leaves the old one."""
    before = [pd.read_parquet(path)] if path.exists() else []
    write_whole(path, lambda part: pd.concat([*before, rows]).to_parquet(part, compression="zstd", index=False))


def search() -> list[Job]:
    tried = [method for methods in METHODS for method in methods]
    return [Job("search", method, lr, 0, SEARCH_STEPS) for lr in LEARNING_RATES for method in tried]


def chosen() -> list[tuple[str, str]]:
    """Of each method the setting and learning rate with the best mean of the last two validations."""
    searched = pd.read_parquet(RESULTS / "metrics.parquet").query("phase == 'search'").dropna(subset="accuracy")
    runs = searched.sort_values("step").groupby(["method", "lr"])
    scores = runs.accuracy.apply(lambda accuracy: accuracy.iloc[-2:].mean())
    return [scores[scores.index.isin(methods, level="method")].idxmax() for methods in METHODS]


# Linux tells the processes of the study to end when it has, kill -9 included.
end_with_the_study = functools.partial(end_with_parent, signal.SIGTERM)


def run_all(pool: Executor, train: Callable, jobs: list, add: Callable) -> None:
    """Train each of the jobs, and add what it returns as it ends. Exits at the end if some have failed."""
    started, failures = {pool.submit(train, job): job for job in jobs}, 0
    for number, future in enumerate(as_completed(started), 1):
        job = started.pop(future)
        if error := future.exception():  # of the program or of the machine: no outcome, so that it is done again
            failures += 1
            print(f"{job} failed:\n{''.join(traceback.format_exception(error))}", flush=True)
            continue
        add(job, future.result())
        print(f"{number} of {len(jobs)}: {job}", flush=True)
    if failures:
        sys.exit(f"{failures} runs failed; see above, and start again")


def train(job: Job) -> None:
    """Train where an earlier start of the study was interrupted."""
    held_out = "tune" if job.phase == "search" else "test"
    settings = {"METHOD": job.method, "LR": job.lr, "SEED": job.seed, "STEPS": job.steps, "RUN": job.folder}
    settings |= {"HELD_OUT": held_out, "MODEL": HERE / "model", "DATA": WORK / "data"}
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    job.folder.mkdir(parents=True, exist_ok=True)
    # A Ray of its own; in a short folder, because the paths of its sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        environment["RAY_TMPDIR"] = ray
        with open(job.folder / "progress.log", "ab") as log:
            command = ["bash", str(HERE / "train.sh")]
            ended = subprocess.run(command, env=environment, stdout=log, stderr=log, preexec_fn=end_with_the_study)
    if ended.returncode:
        raise RuntimeError(f"train.sh ended with exit code {ended.returncode}; see the logs in {job.folder}")


def add(job: Job, _: None = None) -> None:
    """Add a run to RESULTS: its metrics and, if it is compared, its covariance records."""
    added = (job.method, job.seed) in finished(["method", "seed"], "covariance")
    if job.phase in ("main", "long") and not added and files_in(job.folder, PATTERN):
        tokens = tokens_of(read_tokens(job.folder, range(1, STEPS + 1)))
        append(RESULTS / "covariance.parquet", tokens.assign(count=1, method=job.method, seed=job.seed))
    append(RESULTS / "metrics.parquet", metrics_of(job))  # the last: a run that is there is not done again
    for checkpoint in job.folder.glob("checkpoints/global_step_*"):
        shutil.rmtree(checkpoint)


def run(jobs: list[Job]) -> None:
    """Run what is not in RESULTS."""
    done = finished(KEY)
    with ThreadPoolExecutor(JOBS) as pool:
        run_all(pool, train, [job for job in jobs if job[:4] not in done], add)


def metrics_of(job: Job) -> pd.DataFrame:
    """One row to a step, of which some have a validation and all but step 0 a training step."""
    verl = read_run(job.folder)
    frame = pd.DataFrame({name: verl.series(metric) for name, metric in COLUMNS.items()}, dtype="float32")
    frame = frame.rename_axis("step").reset_index().astype({"step": "int32"})
    return frame.assign(**dict(zip(KEY, job, strict=False)))[[*KEY, *frame.columns]]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this at once; the runs end with it
    subprocess.run([sys.executable, str(HERE / "task.py"), "problems", str(WORK / "data")], check=True)
    run(search())
    settings = chosen()
    print("settings: " + ", ".join(f"{method} lr {lr}" for method, lr in settings), flush=True)
    run([Job("main", *setting, seed, STEPS) for seed in SEEDS[1:] for setting in settings])
    run([Job("long", *setting, SEEDS[0], LONG_STEPS) for setting in settings])
    lr = dict(settings)["cw_grpo"]
    run([Job("ablation", variant, lr, seed, STEPS) for seed in SEEDS for variant in ABLATION])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
