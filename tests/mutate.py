"""Which small changes of a file do its tests not see? Cosmic Ray makes them, one by one, in a copy of the repository.

    python tests/mutate.py cw_plugin/weights.py               every place of the file, changed in one way
    python tests/mutate.py cw_plugin/weights.py --draw 30     thirty places, drawn by --seed

[tool.mutations] in pyproject.toml names the tests of each file. It prints the changes that no test sees, and fails if
these are more than a fifth.
"""

import argparse
import ast
import contextlib
import difflib
import fnmatch
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import toml
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db

ROOT = Path(__file__).parent.parent
LARGE = (
    "torch", "transformers", "pandas", "scipy.stats", "matplotlib.pyplot", "datasets", "sympy", "beartype", "jaxtyping",
    "hypothesis", "hydra", "omegaconf", "typer", "pyarrow.parquet", "jinja2",
    "ray", "tensordict", "peft", "vllm",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--draw", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = random.Random(given.seed)
    patterns = toml.load(ROOT / "pyproject.toml")["tool"]["mutations"]
    tests = next((tests for pattern, tests in patterns.items() if fnmatch.fnmatch(given.file, pattern)), None)
    if tests is None:
        parser.error(f"no pattern of [tool.mutations] in pyproject.toml fits {given.file}; add one with its tests")
    with tempfile.TemporaryDirectory(prefix="cw", ignore_cleanup_errors=True) as folder:
        prepare(Path(folder))
        file = Path(given.file)
        original = file.read_text(encoding="utf-8")
        changes = mutants(file, original, chosen)
        drawn = sorted(chosen.sample(changes, min(given.draw, len(changes))))
        started = time.monotonic()
        if not passes(tests, 1200):
            sys.exit(f"{Path('output').read_text()[-5000:]}\nThe tests fail without a change.")
        limit = 30 + 3 * (time.monotonic() - started)
        unseen = 0
        for line, changed in drawn:
            file.write_text(changed, encoding="utf-8")
            if passes(tests, limit):
                unseen += 1
                difference = difflib.unified_diff(original.splitlines(), changed.splitlines(), n=0, lineterm="")
                print(f"{given.file}:{line}", *list(difference)[3:], sep="\n  ", flush=True)
        print(f"{given.file}: {len(drawn) - unseen} of {len(drawn)} changes seen, of {len(changes)}", flush=True)
        sys.exit(1 if unseen > len(drawn) / 5 else 0)


def prepare(copy: Path) -> None:
    """Go to a copy of what git does not ignore, import from it, and import large packages for all forks."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0")[:-1]:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    os.chdir(copy)
    sys.path[0] = str(copy)
    # Python would take a compiled file for that of another source of the same second and size.
    sys.dont_write_bytecode = True
    path = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    os.environ.update(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    for package in LARGE:
        with contextlib.suppress(ImportError):  # the extra dev has no vLLM
            importlib.import_module(package)
    for plugin in entry_points(group="pytest11"):
        plugin.load()


def mutants(file: Path, source: str, chosen: random.Random) -> list[tuple[int, str]]:
    """Line and changed source, one change of each kind at each place."""
    kinds: dict[tuple[str, Any], list[Any]] = {}
    with use_db(":memory:") as found:
        init([file], found, {})
        for item in found.work_items:
            (change,) = item.mutations
            kinds.setdefault((change.operator_name.split("_")[0], change.start_pos), []).append(change)
    changed = []
    for _, of_kind in sorted(kinds.items()):
        change = chosen.choice(of_kind)
        try:
            code = mutate_code(source, get_operator(change.operator_name)(), change.occurrence)
        except AttributeError:  # Cosmic Ray replaces no error that is named with its module
            continue
        if meaning(code) not in (None, meaning(source)):
            changed.append((change.start_pos[0], code))
    return changed


def meaning(source: str) -> str | None:
    """The program without what no test can see: annotations, and the "strict" of zip, which says what always holds.
    None if it is no Python, such as ``a * not b``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None):
                setattr(node, name, ast.Constant(None))
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
    return ast.dump(tree)


def passes(tests: list[str], seconds: float) -> bool:
    """Whether the tests pass in a fork within this time."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(tests,))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def run(tests: list[str]) -> None:
    os.setsid()
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    how = ["-x", "-q", "-n0", "-m", "not slow and not e2e", "--assert=plain", "--hypothesis-seed=0"]
    os._exit(pytest.main([*how, *tests]))


if __name__ == "__main__":
    main()
