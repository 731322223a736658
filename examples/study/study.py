"""Run the study, two runs at a time; what was interrupted goes on.

    python examples/study/study.py            # all of it; prints how far it is and how long it will take
    python examples/study/study.py collect    # only gather what has finished into RESULTS

Runs are written to WORK (default runs/study) and gathered into metrics.parquet and covariance.parquet of RESULTS
(default WORK/results) as they finish; a run that RESULTS has is not done again. The phases: a search for each method's
learning rate, on problems of its own; the runs that are compared, five seeds of each method, of which the first is the
beginning of one long run of each; and the ablation, in which one part of the weights is changed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cw_plugin.files import write_whole
from cw_plugin.reports.metrics import files_in
from cw_plugin.reports.records import PATTERN, read_tokens, tokens_of
from cw_plugin.reports.runs import read_run

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("WORK", HERE.parents[1] / "runs" / "study")).resolve()
RESULTS = Path(os.environ.get("RESULTS", WORK / "results")).resolve()

# Each method that is compared, and the settings that its search tries besides the learning rate. Of an update's 670
# tokens the authors' ratio 0.0002 is none, of which verl makes one.
METHODS = {
    "grpo": ("grpo",),
    "clip_cov": ("clip_cov",),
    "clip_cov_tuned": ("clip_cov_0.005", "clip_cov_0.02"),
    "cw_grpo": ("cw_grpo",),
    "cw_grpo_batch": ("cw_grpo_batch",),
    "cw_grpo_loss": ("cw_grpo_loss",),
}
# At cw_grpo's learning rate; the batch scope is among them because it is compared at one of its own.
ABLATION = ("cw_grpo_batch", "cw_grpo_uncentred", "cw_grpo_unnormalised", "cw_grpo_shuffled")
LEARNING_RATES = ("1e-5", "3e-5", "1e-4")
SEEDS = (1, 2, 3, 4, 5)
STEPS = 200
SEARCH_STEPS = 100
LONG_STEPS = 1000
JOBS = 2  # runs at a time: one alone leaves cores idle
ATTEMPTS = 2
STALLED = 900  # seconds without a word after which a run is ended and tried again
BLOCKS = 16  # of the batches of gradients.py, of which each in turn is left out to find the standard error

ACCURACY = "val-core/study/products/acc/mean@1"
# Column of results/metrics.parquet -> metric of verl. The page does not use all of them: the logs are not committed.
COLUMNS = {
    "accuracy": ACCURACY,
    "format": "val-aux/study/products/format/mean@1",
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
    "length": "response_length/mean",
    "grad_norm": "actor/grad_norm",
    "clip_fraction": "actor/pg_clipfrac",
    "ppo_kl": "actor/ppo_kl",
    "covariance_before": "cw_grpo/covariance_before",
    "covariance_after": "cw_grpo/covariance_after",
    "downweighted_share": "cw_grpo/downweighted_share",
    "signal_share": "cw_grpo/signal_share",
    "entropy_change": "cw_grpo/entropy_change",
    "entropy_forecast": "cw_grpo/entropy_forecast",
    "entropy_forecast_grpo": "cw_grpo/entropy_forecast_grpo",
    "rollout_difference": "training/rollout_probs_diff_max",  # of a token's probability in vLLM and in the trainer
    "seconds": "timing_s/step",
    "advantage_seconds": "timing_s/adv",
    "update_seconds": "timing_s/update_actor",
}
KEY = ("phase", "method", "lr", "seed")


@dataclass(frozen=True)
class Job:
    """One training run."""

    phase: str
    method: str
    lr: str
    seed: int
    steps: int

    @property
    def folder(self) -> Path:
        return WORK / self.phase / f"{self.method}-lr{self.lr}-seed{self.seed}"

    @property
    def finished(self) -> bool:
        marker = self.folder / "finished"  # empty until run() has seen the end of what launch.py says has finished
        return (marker.exists() and marker.stat().st_size > 0) or self in gathered()

    @property
    def step(self) -> int:
        """The last step logged."""
        return self.steps if self.finished else self.last_record["step"]

    @property
    def complete(self) -> bool:
        """Whether all is logged; Ray has been seen to crash while it shuts down after that."""
        return self.last_record["step"] == self.steps and ACCURACY in self.last_record["data"]

    @property
    def logged(self) -> list[bytes]:
        """The log's complete lines, one to a step; it is begun anew when a run goes on."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []

    @property
    def last_record(self) -> dict[str, Any]:
        lines = self.logged
        return json.loads(lines[-1]) if lines else {"step": 0, "data": {}}


def gathered() -> dict[Job, pa.Table]:
    """The runs that RESULTS has, and what it has of them."""
    path = RESULTS / "metrics.parquet"
    if not path.exists():
        return {}
    return _read_gathered(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read_gathered(path: Path, modified: int) -> dict[Job, pa.Table]:
    tables = by_key(pq.read_table(path), KEY)
    return {Job(*key, steps=pc.max(table["step"]).as_py()): table for key, table in tables.items()}


def by_key(table: pa.Table, names: Sequence[str]) -> dict[tuple, pa.Table]:
    """The rows of every combination of values in these columns."""
    found = {}
    for key in dict.fromkeys(zip(*(table[name].to_pylist() for name in names), strict=True)):
        conditions = [pc.field(name) == value for name, value in zip(names, key, strict=True)]
        found[key] = table.filter(functools.reduce(operator.and_, conditions))
    return found


def search() -> list[Job]:
    tried = [method for methods in METHODS.values() for method in methods]
    return [Job("search", method, lr, 0, SEARCH_STEPS) for lr in LEARNING_RATES for method in tried]


def chosen() -> list[tuple[str, str]]:
    """Of each method the setting and learning rate with the best score."""

    def score_of(job: Job) -> float:
        return score([value for value in gathered()[job]["accuracy"].to_pylist() if value is not None])

    best = [max((job for job in search() if job.method in methods), key=score_of) for methods in METHODS.values()]
    return [(job.method, job.lr) for job in best]


def score(accuracy: list[float]) -> float:
    """What the search chooses by: the mean of a run's last two validations."""
    return sum(accuracy[-2:]) / 2


def compared(settings: list[tuple[str, str]]) -> list[Job]:
    return [Job("main", *setting, seed, STEPS) for seed in SEEDS[1:] for setting in settings]


def long(settings: list[tuple[str, str]]) -> list[Job]:
    return [Job("long", *setting, SEEDS[0], LONG_STEPS) for setting in settings]


def ablation(settings: list[tuple[str, str]]) -> list[Job]:
    lr = dict(settings)["cw_grpo"]
    return [Job("ablation", variant, lr, seed, STEPS) for seed in SEEDS for variant in ABLATION]


def planned() -> int:
    """How many runs there are in all."""
    return len(search()) + len(METHODS) * len(SEEDS) + len(ABLATION) * len(SEEDS)


SLOTS: dict[Job, int] = {}


def start(job: Job) -> subprocess.Popen:
    job.folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "METHOD": job.method,
        "LR": job.lr,
        "SEED": str(job.seed),
        "STEPS": str(job.steps),
        "RUN": str(job.folder),
        "MODEL": str(HERE / "model"),
        "DATA": str(WORK / "data"),
        "HELD_OUT": "tune" if job.phase == "search" else "test",
        "RAY_TMPDIR": ray_folder(job),  # a Ray of its own
    }
    with open(job.folder / "progress.log", "ab") as log:
        log.write(b"started\n")
        return subprocess.Popen(
            ["bash", str(HERE / "train.sh")],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_the_study,
        )


def end_with_the_study() -> None:
    """Linux tells this process to end when the study has, kill -9 included."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def last_word(job: Job) -> float:
    """When the run, or the attempt before it, last wrote something."""
    files = [job.folder / name for name in ("train.log", "progress.log")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=time.time())


def ray_folder(job: Job) -> str:
    """Short, because Ray puts sockets into it, whose paths may have 107 characters."""
    path = Path(tempfile.gettempdir()) / f"study-{os.getpid()}-{SLOTS.setdefault(job, len(SLOTS))}"
    path.mkdir(exist_ok=True)
    return str(path)


def run(jobs: list[Job], later_steps: int) -> None:
    """Run what has not finished; ``later_steps`` are those of later phases, for the estimate alone.

    A run that fails, or says nothing for STALLED seconds, is tried again once; if it fails again the others go on.
    """
    waiting = [job for job in jobs if not job.finished]
    running: dict[Job, subprocess.Popen] = {}
    stalled: set[Job] = set()
    attempts = dict.fromkeys(jobs, 0)
    began, said = time.monotonic(), 0.0
    try:
        while waiting or running:
            while waiting and len(running) < JOBS:
                job = waiting.pop(0)
                attempts[job] += 1
                running[job] = start(job)
            time.sleep(1)
            for job, process in list(running.items()):
                if process.poll() is None:
                    if job not in stalled and time.time() - last_word(job) > STALLED:
                        stalled.add(job)
                        process.terminate()
                    continue
                del running[job]
                stalled.discard(job)
                shutil.rmtree(ray_folder(job), ignore_errors=True)
                if process.returncode == 0 or job.complete:
                    for checkpoint in job.folder.glob("checkpoints/global_step_*"):
                        shutil.rmtree(checkpoint)
                    write_whole(job.folder / "finished", json.dumps(asdict(job)))
                    collect()
                elif attempts[job] < ATTEMPTS:
                    waiting.insert(0, job)
                else:
                    print(f"{job.folder} failed {ATTEMPTS} times; its output is in train.log there", flush=True)
            if time.monotonic() - said > 30:
                said = time.monotonic()
                here = sum(len(job.logged) for job in jobs if attempts[job])
                say(jobs, running, here / (said - began), later_steps)
    finally:
        for process in running.values():
            process.terminate()
        for job, process in running.items():
            process.wait()
            shutil.rmtree(ray_folder(job), ignore_errors=True)
    failed = [job for job in jobs if not job.finished]
    if failed:
        sys.exit(
            f"{len(failed)} runs of this phase failed, and the next one needs them all; see above, then run it again."
        )


def say(jobs: list[Job], running: dict[Job, subprocess.Popen], rate: float, later_steps: int) -> None:
    done, total = sum(job.step for job in jobs), sum(job.steps for job in jobs)
    pace = "starting"
    if rate > 0:
        pace = f"{rate:.2f} steps/s, about {(total - done + later_steps) / rate / 3600:.1f} h left in all"
    now = "; ".join(f"{job.method} seed {job.seed} lr {job.lr}: {job.step} of {job.steps}" for job in running)
    finished = sum(job.finished for job in jobs)
    print(
        f"{jobs[0].phase}: {finished} of {len(jobs)} runs, {done} of {total} steps, {pace} | {now}",
        flush=True,
    )


def collect() -> None:
    """Add to RESULTS the runs that have finished since: their metrics, and of those compared the covariance records."""
    metrics, covariance = gathered(), gathered_covariance()
    for finished in sorted(WORK.glob("*/*/finished")):
        if not (written := finished.read_text()):
            continue
        job = Job(**json.loads(written))
        if job not in metrics:
            metrics = {**metrics, job: metrics_of(job)}
        if job.phase in ("main", "long") and (job.method, job.seed) not in covariance:
            covariance[job.method, job.seed] = covariance_of(job)
    for name, tables in (("covariance", covariance), ("metrics", metrics)):
        if tables:
            table = pa.concat_tables([table.combine_chunks() for table in tables.values()])
            save(table, RESULTS / f"{name}.parquet")


def gathered_covariance() -> dict[tuple[str, int], pa.Table]:
    path = RESULTS / "covariance.parquet"
    return by_key(pq.read_table(path), ("method", "seed")) if path.exists() else {}


def covariance_of(job: Job) -> pa.Table:
    """The tokens of a run's records up to STEPS; none for a method without records, which is the loss."""
    kinds = {"covariance": pa.float32(), "weight": pa.float32(), "count": pa.int64()}
    recorded = bool(files_in(job.folder, PATTERN))
    tokens = tokens_of(read_tokens(job.folder, range(1, STEPS + 1))).assign(count=1) if recorded else {}
    columns = {name: pa.array(tokens.get(name, ()), kind) for name, kind in kinds.items()}
    rows = len(columns["count"])
    of = {"method": pa.array([job.method] * rows, pa.string()), "seed": pa.array([job.seed] * rows, pa.int64())}
    return pa.table(of | columns)


def metrics_of(job: Job) -> pa.Table:
    """One row to a step, of which some have a validation and all but step 0 a training step."""
    run = read_run(job.folder)
    series = {metric: run.series(metric) for metric in COLUMNS.values()}
    steps = sorted({step for values in series.values() for step in values.index})
    columns = {name: pa.array([getattr(job, name)] * len(steps)) for name in KEY}
    columns["step"] = pa.array(steps, pa.int32())
    for name, metric in COLUMNS.items():
        columns[name] = pa.array([series[metric].get(step) for step in steps], pa.float32())
    return pa.table(columns)


def save(table: pa.Table, path: Path) -> None:
    write_whole(path, lambda part: pq.write_table(table, part, compression="zstd"))


def main() -> None:
    if sys.argv[1:] == ["collect"]:
        collect()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runs are ended, too
    subprocess.run([sys.executable, str(HERE / "task.py"), "problems", str(WORK / "data")], check=True)
    collect()  # of runs that finished when this was interrupted
    long_steps, ablation_steps = len(METHODS) * LONG_STEPS, len(ABLATION) * len(SEEDS) * STEPS
    run(search(), len(METHODS) * len(SEEDS[1:]) * STEPS + long_steps + ablation_steps)
    settings = chosen()
    print("settings: " + ", ".join(f"{method} lr {lr}" for method, lr in settings), flush=True)
    run(compared(settings), long_steps + ablation_steps)
    run(long(settings), ablation_steps)
    run(ablation(settings), 0)


if __name__ == "__main__":
    main()
