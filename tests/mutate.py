"""Which small changes of a file do its tests let through? Cosmic Ray makes them, one at a time, in a copy of the repository.

python tests/mutate.py cw_plugin/kernels.py               every place of the file, changed in one way
python tests/mutate.py cw_plugin/kernels.py --draw 30     thirty places, drawn by --seed

The tests of each file are in pyproject.toml, below [tool.mutations]. Large packages are imported once, and each change
is tested in a fork. It prints the changes that no test sees, and fails if these are more than a fifth.
"""

import argparse
import ast
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
from pathlib import Path
from typing import Any

import toml
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db

ROOT = Path(__file__).parent.parent


def settings(file: str) -> dict[str, Any]:
    """The tests that concern the file, and the packages to lay over the environment for them."""
    patterns = toml.load(ROOT / "pyproject.toml")["tool"]["mutations"]
    return next(given for pattern, given in patterns.items() if fnmatch.fnmatch(file, pattern))


def copied(folder: Path) -> None:
    """A copy of the files that git knows or does not ignore, and of the releases that tests have downloaded."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".pytest_cache").mkdir()
    (folder / ".pytest_cache" / "d").symlink_to(ROOT / ".pytest_cache" / "d")


def mutants(path: Path, chosen: random.Random) -> list[tuple[int, str]]:
    """Line and changed source: one change of each kind at each place, those of type annotations left out."""
    source = path.read_text(encoding="utf-8")
    kinds: dict[tuple[str, Any], list[Any]] = {}
    with use_db(":memory:") as found:
        init([path], found, {})
        for item in found.work_items:
            (change,) = item.mutations
            kinds.setdefault((change.operator_name.split("_")[0], change.start_pos), []).append(change)
    changes = [chosen.choice(of_kind) for of_kind in kinds.values()]
    sources = [mutate_code(source, get_operator(change.operator_name)(), change.occurrence) for change in changes]
    different = [
        (change.start_pos[0], changed)
        for change, changed in zip(changes, sources, strict=True)
        if meaning(changed) != meaning(source)
    ]
    return sorted(different)


def meaning(source: str) -> str:
    """The program without its annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None):
                setattr(node, name, ast.Constant(None))
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
    import pytest

    os.setsid()
    with open("output", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os._exit(pytest.main(["-x", "-q", "-n0", "-m", "not slow and not e2e", "--hypothesis-seed=0", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen, its = random.Random(given.seed), settings(given.file)
    with tempfile.TemporaryDirectory(prefix="cw") as folder:
        copy = Path(folder)
        copied(copy)
        os.chdir(copy)
        path = [*(str(ROOT / package) for package in its.get("path", [])), folder, f"{folder}/tests"]
        sys.path[:1] = path
        # Python would take a compiled file for that of a source of the same second and size.
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        for package in ("pytest", "torch", "transformers", "pandas", "scipy.stats", "hypothesis", *its.get("preload", [])):
            importlib.import_module(package)
        started = time.monotonic()
        if not passes(its["tests"], 1200):
            sys.exit(Path("output").read_text()[-5000:] + "\nThe tests fail without a change.")
        limit = 20 + 3 * (time.monotonic() - started)

        original, all_mutants = Path(given.file).read_text(), mutants(Path(given.file), chosen)
        drawn = sorted(chosen.sample(all_mutants, min(given.draw or len(all_mutants), len(all_mutants))))
        unseen = 0
        for line, changed in drawn:
            Path(given.file).write_text(changed)
            if passes(its["tests"], limit):
                unseen += 1
                before, after = original.splitlines(), changed.splitlines()
                new = next((b for a, b in zip(before, after, strict=False) if a != b), "")
                print(f"{given.file}:{line}\n  - {before[line - 1].strip()}\n  + {new.strip()}", flush=True)
        seen = len(drawn) - unseen
        print(f"{given.file}: {seen} of {len(drawn)} changes seen, drawn from {len(all_mutants)}")
        sys.exit(unseen > len(drawn) / 5)


if __name__ == "__main__":
    main()
