"""What changes when only the hardware does: measures losses, estimators and weightings by each host's own code.

    python examples/invariance/table.py [HOST ...] [--rows REGEX] [--own MODULE:FUNCTION]

Without HOST it measures all of them, and writes results.json and the table of README.md. With --own, it measures what
rows() of on_HOST.py says. PYTHONPATH must have the module. Hosts that the environment does not have are installed into
.pytest_cache, where the tests keep them.
"""

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from batches import SEEDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXACT = 1e-6  # a relative change below it is rounding
PACKAGES = {  # as in the tests
    "verl": [],
    "trl": [["trl==1.16.0"]],
    "swift": [["ms-swift==4.6.0", "trl==0.29.1", "datasets==4.8.4", "modelscope==1.40.2", "modelscope-hub==0.5.1",
               "json-repair==0.64.5", "dacite==1.9.2"]],
    "openrlhf": [["openrlhf==0.11.2", "--only-binary=:all:", "--python-version=3.11"],
                 ["deepspeed==0.19.6", "hjson", "py-cpuinfo", "pylatexenc"]],
    "skyrl": [["skyrl==0.4.0", "skyrl-gym==0.4.0", "cloudpathlib==0.26.0", "zstandard==0.25.0",
               "--ignore-requires-python"]],
}  # fmt: skip
BESIDES = {"trl": "tests/tools/without_vllm", "swift": "tests/tools/without_vllm", "openrlhf": "examples/openrlhf/cpu",
           "skyrl": "examples/skyrl/cpu"}  # fmt: skip
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- table.py -->", "<!-- end of table.py -->"
VERSIONS = {"verl": "verl 0.9.1", "trl": "TRL 1.16.0", "swift": "ms-swift 4.6.0", "openrlhf": "OpenRLHF 0.11.2",
            "skyrl": "SkyRL 0.4.0"}  # fmt: skip
COLUMNS = (("2 micro", "4 micro", "16 micro"), ("2 ranks", "4 ranks"), ("left", "right"), ("order",), ("dynamic",))
WHY = json.loads((HERE / "why.json").read_text())  # host and row to a clause; the threads were read
CPU = {"CUDA_VISIBLE_DEVICES": "", "VERL_PLATFORM": "cpu", "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0",
       "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


def installed(wanted: list[str]) -> str:
    """The folder that has these packages, as the fixture ``packages`` of tests/conftest.py leaves it."""
    folder = ROOT / ".pytest_cache" / "d" / wanted[0].replace("==", "-")
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "installed"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != " ".join(wanted):
            options = ("-q", "--no-deps", "--use-pep517", "--upgrade", "--no-compile", "--target", folder)
            subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, *wanted], env=os.environ | CPU, check=True
            )
            done.write_text(" ".join(wanted))
    return str(folder)


def measured(host: str, pattern: str = "", own: str = "", several: tuple[int, ...] = (1, 2, 4)) -> dict:
    """The gradients (or advantages, or the host's error) of each row, case and seed, with several numbers of ranks."""
    found, folders = {}, [*map(installed, PACKAGES[host]), *([str(ROOT / BESIDES[host])] if host in BESIDES else [])]
    path = os.pathsep.join([*folders, *map(str, (ROOT, ROOT / "tests/tools", HERE)), os.environ.get("PYTHONPATH", "")])
    environment = (
        os.environ | CPU | {"PYTHONPATH": path, "TORCH_EXTENSIONS_DIR": str(ROOT / ".pytest_cache/extensions")}
    )
    with tempfile.TemporaryDirectory() as folder:
        for ranks in several:
            program = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", HERE / "measure.py")
            command = [sys.executable, *map(str, (*program, host, folder, pattern, own))]
            result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            out = Path(folder, f"{ranks}.pt")
            if not out.exists():
                sys.exit(f"{host} failed with {ranks} processes:\n{result.stdout[-2000:]}{result.stderr[-6000:]}")
            found |= torch.load(out)
    return found


def changes(found: dict) -> dict[str, dict[str, float | str]]:
    """How far a case's gradient is from that of the whole batch, relative to it; the largest of the seeds."""
    table: dict[str, dict[str, float | str]] = {}
    for row, case in dict.fromkeys((row, case) for row, case, _ in found):
        pairs = [(found[row, case, seed], found[row, "whole", seed]) for seed in SEEDS]
        errors = [value for pair in pairs for value in pair if isinstance(value, str)]
        if errors:
            table.setdefault(row, {})["error"] = errors[0]
        elif pairs[0][0] is not None:
            table.setdefault(row, {})[case] = max(float((one - whole).norm() / whole.norm()) for one, whole in pairs)
    return table


def percent(value: float | None) -> str:
    if value is None:
        return "—"
    return "exact" if value < EXACT else f"{100 * value:.2g}%" if value < 1 else f"{100 * value:.0f}%"


def rendered(host: str, table: dict[str, dict[str, float | str]]) -> str:
    """The host's part of README.md: rows that change, with a clause why, and the names of the others."""
    head = "| row | 2, 4, 16 micro-batches | 2, 4 ranks | padding left, right | order | dynamic | why |"
    lines, exact = [head, "|" + "---|" * 7], {}
    for row, values in table.items():
        kind, _, name = row.partition(": ")
        cells = [", ".join(percent(values.get(case)) for case in cases) for cases in COLUMNS]
        if "error" in values:
            why = WHY.get(f"{host} {row}", "not known")
            lines.append(f"| {kind} `{name}` | — | — | — | — | — | does not run: {why} (`{values['error']}`) |")
        elif all(value < EXACT for value in values.values()):
            exact.setdefault(kind, []).append(f"`{name}`")
        else:
            why = WHY.get(f"{host} {row}", "not known")
            if values["again"] > EXACT:
                why += f"; draws at random ({percent(values['again'])} with another draw alone)"
            lines.append(f"| {kind} `{name}` | {' | '.join(cells)} | {why} |")
    changed = "\n".join(lines) + "\n\n" if len(lines) > 2 else ""
    kinds: dict[str, list[str]] = {}
    for kind in sorted(exact):
        kinds.setdefault(", ".join(exact[kind]), []).append(kind)
    listed = "".join(f"- {'; '.join(kinds[names])}: {names}\n" for names in kinds)
    return f"### {VERSIONS[host]}\n\n{changed}Exact:\n\n{listed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=", ".join(PACKAGES))
    parser.add_argument("--rows", default="", metavar="REGEX")
    parser.add_argument("--own", default="", metavar="MODULE:FUNCTION")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for host in arguments.hosts or PACKAGES:
        rows = arguments.rows or ("^loss: own$" if arguments.own else "")
        found = changes(measured(host, rows, arguments.own))
        print(rendered(host, found), flush=True)
        if not rows:
            commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
            results |= {host: found, "measured": f"commit {commit.stdout.strip()}, torch {torch.__version__}"}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(with_tables(PAGE.read_text(), results))


def with_tables(page: str, results: dict) -> str:
    before, rest = page.split(BEGIN)
    tables = "\n".join(rendered(host, results[host]) for host in PACKAGES if host in results)
    return f"{before}{BEGIN}\n\n{tables}\nMeasured at {results['measured']}.\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main()
