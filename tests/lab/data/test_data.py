"""cw-grpo prepare: what it writes, what it checks, what it refuses."""

import gzip
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import httpx
import pyarrow.parquet as pq
import pytest
from interpreter import COPIES, ROOT, cli, python

import cw_plugin
from cw_plugin.lab.data.answers import final_answer
from cw_plugin.lab.data.leakage import contaminated
from cw_plugin.lab.data.prompts import OPEN_RS
from cw_plugin.lab.data.sources import BENCHMARKS, SOURCES

HALVES = {"problem": r"What is $\frac{1}{2}+1$?", "solution": "", "answer": r"\frac{3}{2}"}
TWOS = {"problem": "What is 2+2?", "solution": "", "answer": "4.0"}
ANGLE = {"problem": "How many degrees has a right angle?", "solution": "", "answer": "90^\\circ"}


def write_copy(folder: Path, path: str, rows: list[dict], split: str = "train") -> None:
    file = folder / path / f"{split}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    write_copy(tmp_path / "in", "knoveleng/open-rs", [HALVES, TWOS, ANGLE])
    return tmp_path / "in"


def prepare(copy: Path, out: Path, *more: str | Path, name: str = "open-rs", code: int = 0) -> str:
    """Run the command; what it says. An error is one sentence, and leaves no file."""
    result = cli("prepare", name, "--local-dataset-path", copy, "--local-save-dir", out, *more)
    assert result.exit_code == code, result.output
    assert result.stderr.count("Error: ") == bool(code) and not (code and list(out.rglob("*.*")))
    assert all(line.endswith(".parquet") for line in result.stdout.splitlines())  # for a program that reads them
    return result.output


def rows(out: Path) -> list[dict]:
    return pq.read_table(out / "open_rs" / "train.parquet").to_pylist()


def indices(out: Path) -> list[int]:
    return [row["extra_info"]["index"] for row in rows(out)]


def findings(out: Path) -> list[tuple[int, str]]:
    report = json.loads((out / "open_rs" / "train.report.json").read_text())
    return [(finding["row"], finding["reason"]) for finding in report["findings"]]


def test_rows_are_in_verls_schema_and_the_same_every_time(copy, tmp_path):
    file = tmp_path / "open_rs" / "train.parquet"
    assert prepare(copy, tmp_path).splitlines()[-1] == str(file)
    assert rows(tmp_path)[0] == {
        "data_source": "knoveleng/open-rs",
        "prompt": [{"role": "system", "content": OPEN_RS}, {"role": "user", "content": HALVES["problem"]}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": r"\frac{3}{2}"},
        "extra_info": {"split": "train", "index": 0},
    }
    assert indices(tmp_path) == [0, 1, 2]
    content = file.read_bytes()
    assert pq.read_schema(file).metadata[b"cw_plugin.version"] == cw_plugin.__version__.encode()  # the doctor reads it
    prepare(copy, tmp_path)
    assert file.read_bytes() == content and str(tmp_path).encode() not in content
    given = copy / "knoveleng" / "open-rs" / "train.jsonl"
    of_before = given.stat().st_mtime_ns
    given.write_bytes(given.read_bytes().replace(b"2+2", b"1+3"))
    os.utime(given, ns=(of_before, of_before))  # of a copy that changes, no cache keeps what it was
    prepare(copy, tmp_path)
    assert rows(tmp_path)[1]["prompt"][1]["content"] == "What is 1+3?"


def test_prompts(copy, tmp_path, monkeypatch):
    def first_prompt(name: str | Path) -> list[dict]:
        prepare(copy, tmp_path / "out", "--prompt", name)
        return rows(tmp_path / "out")[0]["prompt"]

    # The paper's, to the byte: system_prompt in open-rs's recipes/grpo.yaml.
    digest = "6ad389bfba87cc15ac21c02d22b0c056ec688bbccae72955fe935ab253951353"
    assert hashlib.sha256(OPEN_RS.encode()).hexdigest() == digest
    question = {"role": "user", "content": HALVES["problem"]}
    system, user = tmp_path / "system.txt", tmp_path / "user.txt"
    system.write_text("Which question? \u00fc.\n", encoding="utf-8")
    user.write_text("Solve {question} in \\boxed{}.", encoding="utf-8")
    assert first_prompt("none") == [question]
    assert first_prompt(system) == [{"role": "system", "content": "Which question? \u00fc."}, question]
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in (user, "~/user.txt"):
        assert first_prompt(place) == [{"role": "user", "content": f"Solve {HALVES['problem']} in \\boxed{{}}."}]
    prepare(Path("~/in"), Path("~/at-home"))
    assert rows(tmp_path / "at-home")[0]["prompt"][1] == question
    system.write_text("Brief.", encoding="utf-8-sig")  # as Windows saves it
    assert first_prompt(system) == [{"role": "system", "content": "Brief."}, question]
    user.write_bytes(b"\xff\xfe")
    assert "UTF-8" in prepare(copy, tmp_path / "o2", "--prompt", user, code=2)
    assert "no-such-file" in prepare(copy, tmp_path / "o2", "--prompt", "no-such-file", code=2)


def test_final_answer():
    boxed = {
        r"first $\boxed{1}$. So $\boxed{\frac{a}{b}}$.": r"\frac{a}{b}",
        "no box": "",
        r"so \boxed{np.arcsin(10/13)}": r"\arcsin(10/13)",
    }
    plain = {
        27.0: "27",
        "204,; ": "204",
        None: "",
        float("nan"): "",
        "$69$,$84$": "69,84",
        r"\$5": r"\$5",
        r"$(-\infty, 0) \cup\{1\}$.": r"(-\infty, 0) \cup\{1\}",
        r"$m_{\max }=n^{2}-n-1$": "m_{max}=n^{2}-n-1",
        "$f(x)=a x+b$, where $b$ is\nan integer": "f(x)=a x+b",
    }
    assert {column: final_answer(column, True) for column in boxed} == boxed
    assert {column: final_answer(column, False) for column in plain} == plain


def test_rows_that_fail_are_listed_and_can_be_left_out(copy, tmp_path):
    """None is left out for an earlier one that is left out itself: the last two ask again what such rows ask."""
    again, other = {**TWOS, "problem": "What  is\n2+2?"}, {**TWOS, "answer": "5"}
    unreadable = {**TWOS, "problem": "And this?", "answer": r"\frac\pi 2 + ("}
    empty, missing = {**TWOS, "problem": "Who?", "answer": ""}, {**TWOS, "problem": "Why?", "answer": None}
    failing = [again, other, unreadable, empty] + [missing] * 10
    answered = [missing | {"answer": "2"}, unreadable | {"answer": "2"}]
    write_copy(copy, "knoveleng/open-rs", [HALVES, TWOS, ANGLE, *failing, *answered])
    said = prepare(copy, tmp_path)
    assert "\n  left out, no answer: row 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ... (11 rows)\n" in said
    assert "\n  listed, the problem of an earlier row: row 3, 4, 18\n" in said
    assert indices(tmp_path) == [0, 1, 2, 3, 4, 5, 17, 18]
    reasons = ["row 1, with the same", "row 1, with another answer, '4.0'", "frac", *["is empty"] * 11, "row 5, "]
    found = findings(tmp_path)
    assert [row for row, _ in found] == [*range(3, 17), 18]
    assert all(part in reason for part, (_, reason) in zip(reasons, found, strict=True))
    assert "\n  left out, the problem of an earlier row: row 3, 4\n" in prepare(copy, tmp_path, "--drop-failing")
    assert indices(tmp_path) == [0, 1, 2, 17, 18]


def test_problems_of_a_benchmark():
    """By hand: 21 different words have 14 runs of eight."""
    words = [f"w{chr(97 + i)}" for i in range(21)]
    training = [
        f"{words[0].upper()}, {words[1]}; ${words[2]}$ {{{words[3]}}} {' '.join(words[4:])}!",
        " ".join(["Before", *words[:14], "after"]).upper(),  # 7 of the 14 runs
        " ".join(["before", *words[:13], "after"]),  # 6 of the 14 runs
        " ".join(reversed(words)),
        r"\frac{1}{2}?",
        r"\frac12?",
        "",
        "What is 7-2?",
        "What is 7?",
    ]
    benchmarks = {"a": ["nothing", " ".join(words)], "b": [r"$\frac {1} {2}$", "What is $7+2$?", "What is $7!$?"]}
    benchmarks["c"] = [" ".join(words[13:])]  # one run
    assert [(finding.row, finding.reason) for finding in contaminated(training, benchmarks)] == [
        (0, "the same problem as a 1"),
        (0, "100% of c 0"),
        (1, "50% of a 1"),
        (4, "the same problem as b 0"),
    ]


def test_contaminated_rows_are_listed_and_can_be_left_out(copy, tmp_path):
    """If the benchmarks are prepared with them."""
    assert "not compared with the benchmarks" in prepare(copy, tmp_path / "[/alone]")
    message = prepare(copy, tmp_path / "out", "--drop-contaminated", code=2)
    assert "--drop-contaminated needs the benchmarks; leave it out, or prepare all" in message
    for source in BENCHMARKS:
        row = {source.question: "1", source.ground_truth: r"\boxed{1}"}
        problems = [row | {source.question: f"Question {i} of {source.name}?"} for i in range(source.rows)]
        if source.name == "math500":
            problems[:2] = [row | {"problem": "What is $2 + 2$ ?"}] * 2
        write_copy(copy, source.path, problems, source.split)
    write_copy(copy, "knoveleng/open-rs", [HALVES, TWOS, ANGLE, {**TWOS, "answer": None}, ANGLE])
    said = prepare(copy, tmp_path / "out", name="all")
    assert said.count("also in a benchmark") == 1  # a benchmark is not compared with itself
    assert "\n  listed, a problem that is also in a benchmark: row 1, 3\n" in said  # of which the first stays
    same = ["the same problem as math500 0", "the same problem as math500 1"]
    assert findings(tmp_path / "out")[:4] == [(row, reason) for row in (1, 3) for reason in same]
    assert indices(tmp_path / "out") == [0, 1, 2, 4]
    prepare(copy, tmp_path / "out", "--drop-contaminated", "--drop-failing", name="all")
    assert indices(tmp_path / "out") == [0, 2]
    table = pq.read_table(tmp_path / "out" / "math500" / "test.parquet")
    assert table.num_rows == 500  # with what is repeated
    assert table["extra_info"][0].as_py() == {"split": "test", "index": 0}


def test_bad_input_is_refused_in_one_sentence(copy, tmp_path):
    out = tmp_path / "out"
    assert "is not a folder" in prepare(tmp_path / "nowhere", out, code=2)
    assert "/proc/no/open_rs/train.parquet cannot be written" in prepare(copy, Path("/proc/no"), code=2)
    for problem in (" \n", 7):
        write_copy(copy, "knoveleng/open-rs", [{**TWOS, "problem": problem}])
        assert "has no problem, as text, in row 0;" in prepare(copy, out, code=2)
    write_copy(copy, "knoveleng/open-rs", [HALVES | {"answer": None}] * 2)
    assert "has no usable row (row 0: The ground truth is empty" in prepare(copy, out, code=2)
    for rows in (1, 31):
        write_copy(copy, "HuggingFaceH4/aime_2024", [{"problem": "Why?", "answer": "1"}] * rows)
        said = prepare(copy, out, name="aime24", code=2)
        assert f"has {rows} rows, and the benchmark has 30; download it again" in said


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("train.jsonl", b'{"question": "What is 2+2?", "answer": "4"}\n', "problem"),
        ("train.jsonl", b'{"problem": "What is 2+2?", "ans', "JSON parse error"),
        ("train.jsonl", b"", "it is empty"),
        ("README.md", b"---\na: [\n---\n", ""),
        ("train.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], ""),
        ("train.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:12] + b"\xff" * 40, ""),
    ],
)
def test_a_damaged_copy_is_refused_in_one_sentence(copy, tmp_path, name, content, why):
    folder = copy / "knoveleng" / "open-rs"
    if name != "README.md":
        (folder / "train.jsonl").unlink()
    (folder / name).write_bytes(content)
    said = prepare(copy, tmp_path / "out", code=2)
    assert re.search(rf"open-rs, split train, cannot be read \(.*{why}.*\); download it again", said), said


@pytest.mark.parametrize("offline", ["1", pytest.param("0", marks=pytest.mark.slow)])  # it is tried again
def test_a_hub_that_does_not_answer(tmp_path, offline):
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    result = python("-m", "cw_plugin", "prepare", "aime24", "--local-save-dir", tmp_path / "out", **hub)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert re.search(r"aime_2024, split train, cannot be read \(.+\); check the network", result.stderr)


def test_the_hub_is_asked_with_its_own_cache(tmp_path, monkeypatch):
    asked = Mock(side_effect=httpx.ConnectError("no network"))  # as the hub's client raises it
    monkeypatch.setattr("datasets.load_dataset", asked)
    result = cli("prepare", "aime24", "--local-save-dir", tmp_path)
    assert result.exit_code == 2 and "cannot be read (no network); check the network" in result.stderr
    assert asked.call_args.kwargs["cache_dir"] is None  # so a dataset is downloaded once


def test_verls_dataset_reads_the_papers_data(tmp_path):
    """The real data, of which the training set is cut to 400 rows."""
    RLHFDataset = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="needs verl").RLHFDataset
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    if not COPIES.is_dir():
        pytest.skip("needs local copies of the benchmarks, see README")
    for source in SOURCES.values():
        shutil.copytree(COPIES / source.path, tmp_path / "in" / source.path)
    file = tmp_path / "in" / "knoveleng" / "open-rs" / "train.jsonl"
    file.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:400]), encoding="utf-8")
    prepare(tmp_path / "in", tmp_path / "out", name="all")
    benchmarks = [tmp_path / "out" / source.name / "test.parquet" for source in BENCHMARKS]
    config = {"max_prompt_length": 4096, "cache_dir": str(tmp_path), "filter_overlong_prompts": False}
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "cpu" / "model")
    dataset = RLHFDataset(list(map(str, benchmarks)), tokenizer, OmegaConf.create(config | {"return_raw_chat": True}))
    assert (len(dataset), len(rows(tmp_path / "out"))) == (30 + 500 + 40 + 272 + 675, 400)
    assert [turn["role"] for turn in dataset[0]["raw_prompt"]] == ["system", "user"]
    for place, name, answer in (
        (30, "HuggingFaceH4/MATH-500", r"\left( 3, \frac{\pi}{2} \right)"),
        (530, "knoveleng/AMC-23", "27"),
        (570, "knoveleng/Minerva-Math", "1.6"),
        (842, "knoveleng/OlympiadBench", "2"),
    ):
        row = dataset[place]
        assert (row["data_source"], row["index"], row["reward_model"]["ground_truth"]) == (name, 0, answer)
