"""lighteval as an engine, as in the paper. It runs in its own process, and usually in its own environment."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import EngineError, EvaluationError, how_to_install
from cw_plugin.evaluation.engine import TEMPLATE, EvaluationOptions, Task, run_to_log
from cw_plugin.evaluation.store import Journal
from cw_plugin.rewards.think import FORMAT_RULES, template_opens_think

TASKS = Path(__file__).absolute().with_name("lighteval_tasks.py")
NEWS = 60  # seconds between two lines about a running lighteval


class Lighteval:
    """``lighteval vllm`` or ``lighteval accelerate``, once for each benchmark of a model.

    An interrupted benchmark starts from its beginning, unlike with verl.

    Args:
        options: of the command line. The overrides are for lighteval's model configuration, ``model_parameters.*``.
        executable: the path of lighteval's executable.
        backend: ``vllm`` or ``accelerate``.

    Raises:
        EvaluationError: lighteval is not installed, or an override is not one of lighteval's.
    """

    trust_remote_code = False

    def __init__(self, options: EvaluationOptions, executable: str, backend: str):
        from omegaconf import OmegaConf

        found = shutil.which(executable)
        if found is None:
            raise EvaluationError(
                f"{executable} is not found. Make an environment for lighteval alone, because it pins other versions "
                f"than the reward does; install it there ({how_to_install('lighteval')}); then set "
                "LIGHTEVAL=ENVIRONMENT/bin/lighteval."
            )
        foreign = [text for text in options.overrides if not text.startswith("model_parameters.")]
        if foreign:
            raise EvaluationError(f"lighteval takes only overrides of model_parameters.*, got {foreign[0]}.")
        self.executable, self.backend = str(Path(found).absolute()), backend
        longest = options.max_prompt + options.max_response
        generation = {"temperature": options.temperature, "top_p": options.top_p}
        parameters: dict[str, Any] = {"generation_parameters": generation}
        # Not max_new_tokens: lighteval accelerate would cut prompts to that length. The tasks set generation_size
        # instead.
        parameters["max_model_length" if backend == "vllm" else "max_length"] = longest
        overrides = OmegaConf.from_dotlist(options.overrides)
        merged: Any = OmegaConf.to_container(OmegaConf.merge({"model_parameters": parameters}, overrides))
        self.parameters: dict[str, Any] = merged["model_parameters"]
        self.max_response = options.max_response
        given = self.parameters["generation_parameters"]
        others = {name: given[name] for name in given if name not in ("temperature", "top_p", "top_k")}
        others |= {"dtype": self.parameters["dtype"]} if "dtype" in self.parameters else {}
        self.settings = {
            "engine": f"lighteval {backend}",
            "temperature": given["temperature"],
            "top_p": given["top_p"],
            "top_k": given.get("top_k"),
            "other_parameters": others or None,
            "max_prompt_length": options.max_prompt,
            "max_response_length": options.max_response,
            TEMPLATE: {},
        }

    def ask(self, task: Task, say: Callable[[str], None]) -> None:
        for name in dict.fromkeys(row["extra_info"]["benchmark"] for row in task.rows):
            self._ask(task, name, [row for row in task.rows if row["extra_info"]["benchmark"] == name], say)

    def _ask(self, task: Task, name: str, rows: list[dict[str, Any]], say: Callable[[str], None]) -> None:
        parameters = {**self.parameters, "system_prompt": _system_turn(name, rows)}
        if self.backend == "vllm":
            parameters["seed"] = task.seed
        log = task.folder / "lighteval.log"
        with tempfile.TemporaryDirectory(dir=task.folder, prefix=".lighteval-") as temporary:
            folder = Path(temporary)
            # lighteval caches answers under the model's name. If that is an absolute path, the cache is in the model's
            # folder.
            if Path(task.path).is_dir():
                (folder / "model").symlink_to(task.path)
            parameters["model_name"] = "model" if Path(task.path).is_dir() else task.path
            parameters["cache_dir"] = str(folder / "cache")
            (folder / "data" / name).mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(rows), folder / "data" / name / "test.parquet")
            (folder / "model.yaml").write_text(json.dumps({"model_parameters": parameters}), encoding="utf-8")
            command = [self.executable, self.backend, str(folder / "model.yaml"), f"cw:{name}|0"]
            command += ["--custom-tasks", str(TASKS), "--output-dir", str(folder / "out"), "--save-details"]
            environment = {
                "CW_EVALUATION_DATA": str(folder / "data"),
                "CW_EVALUATION_MAX_RESPONSE": str(self.max_response),
            }
            say(f"{task.name}: lighteval asks {len(rows)} answers to {name}; all of its output goes to {log}")
            code = run_to_log(
                command,
                log,
                lambda: say(f"{task.name}: lighteval is at {name}"),
                NEWS,
                cwd=folder,
                env=os.environ | environment,
            )
            details = sorted((folder / "out" / "details").rglob("*.parquet"))
            if code != 0 or not details:
                raise EngineError(
                    f"lighteval stopped while it evaluated {task.name} on {name}. Finished benchmarks are kept; give "
                    f"the same command again to go on. lighteval's output: {log}"
                )
            self._journal(task, rows, pq.read_table(details[-1]).to_pylist())

    def _journal(self, task: Task, rows: list[dict[str, Any]], details: list[dict[str, Any]]) -> None:
        opens_think = template_opens_think(task.path)
        journal = Journal(task.answers.journal)
        for detail in details:
            output = detail["model_response"]["text"][0]
            accuracy = float(next(value for key, value in detail["metric"].items() if key.startswith("pass@k")))
            form = FORMAT_RULES["matched"](output, opens_think)
            predictions = (detail["doc"]["specific"] or {}).get("extracted_predictions") or [""]
            journal.write(
                {
                    **rows[int(detail["doc"]["id"])]["extra_info"],
                    "output": output,
                    "score": accuracy + form,
                    "acc": accuracy,
                    "format": form,
                    "pred": predictions[-1],
                    "tokens": len(detail["model_response"]["output_tokens"][0]),
                }
            )


def _system_turn(name: str, rows: list[dict[str, Any]]) -> str | None:
    """The system turn of all rows, None if they have no system turn."""
    prompts = [[turn["content"] for turn in row["prompt"]] for row in rows]
    roles = {tuple(turn["role"] for turn in row["prompt"]) for row in rows}
    if roles == {("user",)}:
        return None
    if roles == {("system", "user")} and len({system for system, _ in prompts}) == 1:
        return prompts[0][0]
    raise EvaluationError(
        f"lighteval needs one user turn per prompt, and the same system turn in all prompts; {name} has others."
    )
