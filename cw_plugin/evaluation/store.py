"""The graded answers of one model on disk: a journal while they arrive, then one file for each finished benchmark."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from cw_plugin.errors import EvaluationError
from cw_plugin.evaluation.benchmarks import Benchmark
from cw_plugin.files import write_whole

Key = tuple[str, int, int]  # benchmark, index, sample


class Journal:
    """Appends graded answers to a file that only this process writes. An answer is on disk when :meth:`write` returns.

    Args:
        folder: the folder with the files of all processes of the run.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{uuid.uuid4().hex}.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, answer: dict[str, Any]) -> None:
        """Append one answer; may be called from many threads."""
        line = json.dumps(answer, ensure_ascii=False) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())


class Answers:
    """All answers of one model, under ``OUT/<name>``.

    Attributes:
        folder: that folder.
        graded: the answers so far, by benchmark, index and sample.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.graded: dict[Key, dict[str, Any]] = {}
        self._read: dict[Path, int] = {}  # bytes of each journal that have been read so far
        self._journaled: set[str] = set()  # benchmarks with answers in a journal
        for file in sorted(folder.glob("*.jsonl")):
            self._take(file.read_text(encoding="utf-8").split("\n")[:-1])
        self.poll()

    @property
    def journal(self) -> Path:
        """The folder of the journals."""
        return self.folder / "journal"

    def poll(self) -> int:
        """Read the new lines of the journals; returns the number of all answers."""
        for file in sorted(self.journal.glob("*.jsonl")):
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                new = stream.read()
            whole = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
            self._read[file] = self._read.get(file, 0) + len(whole)
            self._journaled |= self._take(whole.decode().split("\n")[:-1])
        return len(self.graded)

    def _take(self, lines: list[str]) -> set[str]:
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            self.graded.setdefault((answer["benchmark"], answer["index"], answer["sample"]), answer)
        return {answer["benchmark"] for answer in answers}

    def missing(self, benchmark: Benchmark) -> Iterator[Key]:
        """The keys of the missing answers to ``benchmark``."""
        for sample in range(benchmark.n):
            for index in range(len(benchmark.rows)):
                if (benchmark.name, index, sample) not in self.graded:
                    yield benchmark.name, index, sample

    def counts(self) -> Counter[str]:
        """The number of answers to each benchmark, by its name."""
        return Counter(name for name, _, _ in self.graded)

    def of(self, benchmark: Benchmark) -> list[dict[str, Any]]:
        """The existing answers to ``benchmark``, by question and sample."""
        keys = sorted(key for key in self.graded if key[0] == benchmark.name)
        return [
            {
                "benchmark": benchmark.name,
                "index": index,
                "sample": sample,
                "problem": benchmark.problem(index),
                "ground_truth": benchmark.ground_truth(index),
                **self.graded[benchmark.name, index, sample],
            }
            for _, index, sample in keys
        ]

    def finish(self, benchmark: Benchmark) -> bool:
        """Write the benchmark's file if all answers exist; returns whether they do."""
        if next(self.missing(benchmark), None) is not None:
            return False
        lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in self.of(benchmark)]
        write_whole(self.folder / f"{benchmark.name}.jsonl", "".join(lines))
        return True

    def drop_journal(self, finished: set[str]) -> None:
        """Delete the journals if all of their answers are in the files of finished benchmarks."""
        if self._journaled <= finished:
            shutil.rmtree(self.journal, ignore_errors=True)


class Settings:
    """``OUT/<name>/settings.json``: the settings under which the folder's answers were given.

    Args:
        folder: ``OUT/<name>``.
        asked: the settings of this run.
        same: the settings that must equal those of the existing answers.

    Raises:
        EvaluationError: one of them differs.
    """

    def __init__(self, folder: Path, asked: dict[str, Any], same: Collection[str], benchmarks: list[Benchmark]):
        self.path = folder / "settings.json"
        self.values: dict[str, Any] = {**asked, "benchmarks": {}}
        if self.path.exists():
            before = json.loads(self.path.read_text(encoding="utf-8"))
            for key in same:
                if (was := before.get(key, now := asked[key])) != now:  # an earlier version may not have noted it
                    raise EvaluationError(
                        f"{folder} holds answers with {key}={was}, and now {key} is {now}; use the same settings as "
                        "before, or another folder with --out."
                    )
            self.values["benchmarks"] = before["benchmarks"]
            self.values["n"] = max(before["n"], asked["n"])
            self.values |= {key: before[key] for key in ("interruptions",) if key in before}
        for benchmark in benchmarks:
            was = self.values["benchmarks"].get(benchmark.name)
            if was is not None and was["sha"] != benchmark.sha:
                raise EvaluationError(
                    f"{folder} holds answers to {benchmark.name} with other questions or another prompt; use the same "
                    "file as before, or another folder with --out."
                )

    def note_interruption(self, unfinished: Collection[Benchmark], counts: Counter[str]) -> None:
        """Count one more interruption, if the last run ended after its first answer to one of these benchmarks."""
        for name in (benchmark.name for benchmark in unfinished):
            if counts[name] > self.values["benchmarks"].get(name, {}).get("asked_at", counts[name]):
                self.values["interruptions"] = self.values.get("interruptions", 0) + 1
                break

    def write(self, finished: dict[Benchmark, bool], counts: Counter[str] | None = None) -> None:
        """Record which benchmarks are finished.

        Args:
            counts: given before the others are asked; notes how many answers they have.
        """
        for benchmark, done in finished.items():
            before = self.values["benchmarks"].get(benchmark.name, {"n": 1})
            self.values["benchmarks"][benchmark.name] = {
                "questions": len(benchmark.rows),
                "n": max(before["n"], benchmark.n),
                "finished": done,
                "prompt_sha": benchmark.prompt_sha,
                "sha": benchmark.sha,
            }
            at = before.get("asked_at") if counts is None else counts[benchmark.name]
            if not done and at is not None:
                self.values["benchmarks"][benchmark.name]["asked_at"] = at
        prompts = {entry["prompt_sha"] for entry in self.values["benchmarks"].values()}
        self.values["prompt_sha"] = prompts.pop() if len(prompts) == 1 else None
        write_whole(self.path, json.dumps(self.values, indent=1, ensure_ascii=False) + "\n")
