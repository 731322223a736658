"""``cw-grpo demo``: the pages of the two runs that come with the package."""

import json
import re
from pathlib import Path

import matplotlib
import pyarrow.parquet as pq
from interpreter import python
from synthetic_runs import rows_of

import cw_plugin.lab.reports
from cw_plugin.lab.reports import notes

DEMO = Path(cw_plugin.lab.reports.__file__).parent / "demo"
ACCURACY = "val-core/knoveleng/open-rs/acc/mean@4"


def test_it_compares_the_recorded_runs_and_needs_only_what_the_extra_report_installs(tmp_path):
    absent = ("torch", "transformers", "datasets", "math_verify", "ray", "verl", "vllm", "trl")
    code = (
        "from importlib.machinery import PathFinder\nfind = PathFinder.find_spec\n"
        f"PathFinder.find_spec = lambda name, *args: None if name in {absent} else find(name, *args)\n"
        "from cw_plugin.lab.cli import app\napp()"
    )
    home = {"HOME": str(tmp_path), "MPLCONFIGDIR": matplotlib.get_cachedir()}  # another home has no cache of fonts
    result, out = python("-c", code, "demo", "--out", "~/pages", **home), tmp_path / "pages"
    assert result.returncode == 0, result.stderr
    assert notes.NOT_ALL_ASKED not in result.stdout + result.stderr  # it was not evaluated at all
    logs = {name: (DEMO / name / "metrics.jsonl").read_text().splitlines() for name in ("grpo", "cw_grpo")}
    last = {name: json.loads(lines[-1])["data"][ACCURACY] for name, lines in logs.items()}
    header, accuracy, *_ = rows_of(out / "comparison.csv")
    assert header[1:4] == ["GRPO", "CW-GRPO", "CW-GRPO less GRPO"]
    assert accuracy[:3] == ["Accuracy, step 20", f"{last['grpo']:.1%}", f"{last['cw_grpo']:.1%}"]
    assert "One cannot tell whether this is chance" in result.stdout  # of one seed
    for page in ("report.html", "tokens.html"):
        assert str(out / page) in result.stdout and (out / page).stat().st_size > 10_000
    assert re.findall(r'"label":"(.*?)"', (out / "tokens-2.html").read_text()) == ["step 1", "step 20"]


def test_the_token_of_readmes_picture_is_nearly_ignored():
    """In 19 + 4 = 25, the wrong 5; examples/cpu/pictures.sh names its place, and README its weight."""
    table = pq.read_table(DEMO / "cw_grpo" / "tokens" / "step_000001.parquet").to_pandas()
    response = table[(table.group == 5) & (table.row == 26)]
    assert "19 + 4 = 25" in "".join(response.text) and (response.reward == 0).all()
    wrong = response[response.position == 10].iloc[0]
    assert wrong.text == "5" and wrong.weight < 0.001
    plain = pq.read_table(DEMO / "grpo" / "tokens" / "step_000001.parquet").to_pandas()
    assert (plain.weight == 1).all()


def test_the_recorded_runs_name_no_machine():
    for file in DEMO.rglob("*"):
        if file.is_file() and file.suffix != ".parquet":
            assert not re.search(r"(^|[\s\"'])/\w+/", file.read_text()), file
