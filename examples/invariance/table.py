"""What changes when only the hardware does: measures losses, estimators and weightings by each host's own code.

    python examples/invariance/table.py [HOST ...] [--rows REGEX] [--own MODULE:FUNCTION]

Without HOST it measures all of them, and writes results.json and the table of README.md. With --own, it measures what
rows() of on_HOST.py says. PYTHONPATH must have the module. Hosts that the environment does not have are installed into
.pytest_cache, where the tests keep them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from batches import SEEDS

from cw_plugin.hosts.host import OPENRLHF, SKYRL, SWIFT, TRL, VERL

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "tools"))
from host_packages import host_folders  # noqa: E402
from interpreter import python  # noqa: E402

HOSTS = {"verl": VERL, "trl": TRL, "swift": SWIFT, "openrlhf": OPENRLHF, "skyrl": SKYRL}
EXACT = 1e-6  # a relative change below it is rounding
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- table.py -->", "<!-- end of table.py -->"
HEAD = "| row | 2, 4, 16 micro-batches | 2, 4 ranks | padding left, right | order | dynamic | why |"
COLUMNS = (("2 micro", "4 micro", "16 micro"), ("2 ranks", "4 ranks"), ("left", "right"), ("order",), ("dynamic",))
WHY = json.loads((HERE / "why.json").read_text())  # host and row to a clause; the threads were read
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "VERL_PLATFORM": "cpu", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
               "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CW_GRPO_RECORD_EVERY": "0",
               "TORCH_EXTENSIONS_DIR": str(ROOT / ".pytest_cache" / "extensions")}  # fmt: skip


def measured(host: str, pattern: str = "", own: str = "", several: tuple[int, ...] = (1, 2, 4)) -> dict:
    """The gradients (or advantages, or the host's error) of each row, case and seed, with several numbers of ranks."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in several:
            program = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", HERE / "measure.py")
            out = Path(folder, f"{ranks}.pt")
            result = python(*program, host, out, pattern, own, path=host_folders(host), cwd=folder, **ENVIRONMENT)
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
    if value < EXACT:
        return "exact"
    return f"{100 * value:.2g}%" if value < 1 else f"{100 * value:.0f}%"


def rendered(host: str, table: dict[str, dict[str, float | str]]) -> str:
    """The host's part of README.md: rows that change, with a clause why, and the names of the others."""
    lines, exact = [HEAD, "|" + "---|" * 7], {}
    for row, values in table.items():
        kind, _, name = row.partition(": ")
        why, cells = WHY.get(f"{host} {row}", "not known"), ["—"] * len(COLUMNS)
        if "error" in values:
            why = f"does not run: {why} (`{values['error']}`)"
        elif max(values.values()) < EXACT:
            exact.setdefault(kind, []).append(f"`{name}`")
            continue
        else:
            cells = [", ".join(percent(values.get(case)) for case in cases) for cases in COLUMNS]
            if values["again"] > EXACT:
                why += f"; draws at random ({percent(values['again'])} with another draw alone)"
        lines.append(f"| {kind} `{name}` | {' | '.join(cells)} | {why} |")
    kinds: dict[str, list[str]] = {}
    for kind in sorted(exact):
        kinds.setdefault(", ".join(exact[kind]), []).append(kind)
    changed = "\n".join(lines) + "\n\n" if len(lines) > 2 else ""
    listed = "".join(f"- {'; '.join(kinds[names])}: {names}\n" for names in kinds)
    return f"### {HOSTS[host].name} {HOSTS[host].newest}\n\n{changed}Exact:\n\n{listed}"


def with_tables(page: str, results: dict) -> str:
    before, rest = page.split(BEGIN)
    tables = "\n".join(rendered(host, results[host]) for host in HOSTS if host in results)
    return f"{before}{BEGIN}\n\n{tables}\nMeasured at {results['measured']}.\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=", ".join(HOSTS))
    parser.add_argument("--rows", default="", metavar="REGEX")
    parser.add_argument("--own", default="", metavar="MODULE:FUNCTION")
    arguments = parser.parse_args()
    rows = arguments.rows or ("^loss: own$" if arguments.own else "")
    results = json.loads(RESULTS.read_text())
    for host in arguments.hosts or HOSTS:
        found = changes(measured(host, rows, arguments.own))
        print(rendered(host, found), flush=True)
        if not rows:
            commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
            results |= {host: found, "measured": f"commit {commit}, torch {torch.__version__}"}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(with_tables(PAGE.read_text(), results))


if __name__ == "__main__":
    main()
