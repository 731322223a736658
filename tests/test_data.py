"""cw-grpo prepare: what it writes, what it checks, what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cw_plugin.cli import app
from cw_plugin.data.answers import final_answer
from cw_plugin.data.leakage import NGRAM, Leak, find_leaks, words
from cw_plugin.data.prompts import OPEN_RS
from cw_plugin.data.sources import SOURCES

PROMPT_SHA256 = "6ad389bfba87cc15ac21c02d22b0c056ec688bbccae72955fe935ab253951353"

ROOT = Path(__file__).parents[1]
COPIES = Path(os.environ.get("CW_GRPO_DATA", ROOT.parent / "shared" / "data"))

PROBLEMS = [
    {
        "problem": r"What is $\frac{1}{2}+1$?",
        "solution": r"$\boxed{\frac{3}{2}}$",
        "answer": r"\frac{3}{2}",
        "level": "Hard",
    },
    {"problem": "What is 2+2?", "solution": r"It is $\boxed{4}$.", "answer": "4", "level": "Easy"},
    {
        "problem": "How many degrees has a right angle?",
        "solution": r"$\boxed{90}$",
        "answer": "90^\\circ",
        "level": "Easy",
    },
]


def write_copy(folder: Path, path: str, rows: list[dict], split: str = "train") -> Path:
    file = folder / path / f"{split}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def run(*arguments: str | Path, code: int = 0) -> str:
    """Run the command; its output on success, its message on failure."""
    result = CliRunner().invoke(app, ["prepare", *map(str, arguments)], env={"COLUMNS": "1000"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def files(folder: Path) -> list[str]:
    return (
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) if folder.exists() else []
    )


@pytest.fixture
def copy(tmp_path):
    write_copy(tmp_path / "in", "knoveleng/open-rs", PROBLEMS)
    return tmp_path / "in"


def arguments(copy: Path, out: Path, *more: str | Path) -> list[str]:
    return list(map(str, ["prepare", "open-rs", "--local_dataset_path", copy, "--local_save_dir", out, *more]))


def prepare_open_rs(copy: Path, out: Path, *more: str, code: int = 0) -> str:
    return run(*arguments(copy, out, *more)[1:], code=code)


def indices(out: Path) -> list[int]:
    return [row["index"] for row in pq.read_table(out / "open_rs" / "train.parquet")["extra_info"].to_pylist()]


def test_rows_are_in_verls_schema(copy, tmp_path):
    assert prepare_open_rs(copy, tmp_path / "out").split() == [str(tmp_path / "out" / "open_rs" / "train.parquet")]
    table = pq.read_table(tmp_path / "out" / "open_rs" / "train.parquet")
    string = pa.string()
    assert table.schema.remove_metadata() == pa.schema(
        {
            "data_source": string,
            "prompt": pa.list_(pa.struct({"role": string, "content": string})),
            "ability": string,
            "reward_model": pa.struct({"style": string, "ground_truth": string}),
            "extra_info": pa.struct(
                {"split": string, "index": pa.int64(), "level": string, "subject": string, "unit": string}
            ),
        }
    )
    assert table.to_pylist()[0] == {
        "data_source": "knoveleng/open-rs",
        "prompt": [
            {"role": "system", "content": OPEN_RS},
            {"role": "user", "content": r"What is $\frac{1}{2}+1$?"},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": r"\frac{3}{2}"},
        "extra_info": {"split": "train", "index": 0, "level": "Hard", "subject": None, "unit": None},
    }
    assert indices(tmp_path / "out") == [0, 1, 2]


def test_the_file_says_where_its_rows_come_from_and_is_the_same_every_time(copy, tmp_path):
    def prepared(*more: str) -> tuple[bytes, dict[bytes, bytes]]:
        prepare_open_rs(copy, tmp_path / "out", *more)
        file = tmp_path / "out" / "open_rs" / "train.parquet"
        return file.read_bytes(), pq.read_schema(file).metadata

    first, metadata = prepared()
    assert prepared()[0] == first
    assert metadata[b"cw_plugin.source"] == b"knoveleng/open-rs" and str(tmp_path).encode() not in first
    other_prompt = prepared("--prompt", "none")[1]
    assert metadata[b"cw_plugin.prompt_sha256"] != other_prompt[b"cw_plugin.prompt_sha256"]
    assert metadata[b"cw_plugin.revision"] == other_prompt[b"cw_plugin.revision"]
    write_copy(copy, "knoveleng/open-rs", PROBLEMS[:2])
    assert metadata[b"cw_plugin.revision"] != prepared()[1][b"cw_plugin.revision"]


def test_the_papers_prompt_is_literal():
    # The bytes of system_prompt in open-rs's recipes/grpo.yaml.
    assert hashlib.sha256(OPEN_RS.encode()).hexdigest() == PROMPT_SHA256
    assert r"within \boxed{{} ." not in OPEN_RS
    assert r"within \boxed{{}} . The" in OPEN_RS


def test_prompts(copy, tmp_path):
    def first_prompt(name: str | Path) -> list[dict]:
        prepare_open_rs(copy, tmp_path / "out", "--prompt", str(name))
        return pq.read_table(tmp_path / "out" / "open_rs" / "train.parquet")["prompt"][0].as_py()

    question = PROBLEMS[0]["problem"]
    system, user = tmp_path / "system.txt", tmp_path / "user.txt"
    system.write_text("Antworte kurz: \u00fc.\n", encoding="utf-8")
    user.write_text("Solve {question} in \\boxed{}.", encoding="utf-8")
    assert first_prompt("none") == [{"role": "user", "content": question}]
    assert first_prompt(system) == [
        {"role": "system", "content": "Antworte kurz: \u00fc."},
        {"role": "user", "content": question},
    ]
    assert first_prompt(user) == [{"role": "user", "content": f"Solve {question} in \\boxed{{}}."}]
    user.write_bytes(b"\xff\xfe")
    assert "UTF-8" in prepare_open_rs(copy, tmp_path / "o2", "--prompt", str(user), code=2)
    assert "no-such-file" in prepare_open_rs(copy, tmp_path / "o2", "--prompt", "no-such-file", code=2)


@pytest.mark.parametrize(
    ("gold", "is_boxed", "answer"),
    [
        (27.0, False, "27"),
        (0.5, False, "0.5"),
        (204, False, "204"),
        ("204 ", False, "204"),
        (r"first $\boxed{1}$, so $\boxed{\frac{a}{b}}$.", True, r"\frac{a}{b}"),
        (r"$\boxed{\left\{1,2\right\}}$", True, r"\left\{1,2\right\}"),
        ("no box", True, ""),
        (None, False, ""),
        ("$69$,$84$", False, "69,84"),
        (r"\$5", False, r"\$5"),
        (r"$(-\infty, 0) \cup\{1\}$.", False, r"(-\infty, 0) \cup\{1\}"),
        (r"$m_{\max }=n^{2}-n-1$", False, "m_{max}=n^{2}-n-1"),
        ("$f(x)=a x+b$, where $b$ is an integer", False, "f(x)=a x+b"),
        (r"so \boxed{np.arcsin(10/13)}", True, r"\arcsin(10/13)"),
    ],
)
def test_final_answer(gold, is_boxed, answer):
    assert final_answer(gold, is_boxed) == answer


def test_rows_that_fail_are_listed_and_can_be_dropped(copy, tmp_path):
    rows = [
        *PROBLEMS,
        {**PROBLEMS[1], "problem": "What  is\n2+2?"},
        {**PROBLEMS[1], "problem": "What is 2+2?", "answer": "5"},
        {**PROBLEMS[1], "problem": "And this?", "answer": r"\frac\pi 2 + ("},
    ]
    write_copy(copy, "knoveleng/open-rs", rows)
    prepare_open_rs(copy, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "open_rs" / "train.report.json").read_text())
    assert [failure["row"] for failure in report["failures"]] == [3, 4, 5]
    reasons = [failure["reason"] for failure in report["failures"]]
    assert "row 1, with the same answer" in reasons[0]
    assert "row 1, with another answer, '4'" in reasons[1]
    assert r"\frac\pi 2 + (" in reasons[2].replace("\\\\", "\\")
    assert report["rows"] == 6 and report["dropped"] == []

    prepare_open_rs(copy, tmp_path / "out", "--drop-failing")
    assert indices(tmp_path / "out") == [0, 1, 2]


def test_a_training_row_without_an_answer_is_left_out_with_one_line(copy, tmp_path):
    bare = {**PROBLEMS[1], "problem": "And that?"}
    rows = [*PROBLEMS, {**bare, "answer": ""}, {**bare, "problem": "Why?", "answer": None}]
    write_copy(copy, "knoveleng/open-rs", rows)
    result = CliRunner().invoke(app, arguments(copy, tmp_path / "out"))
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "no answer" in line and "left out" in line]
    assert line.strip() == "left out, because they have no answer: row 3, 4"
    assert indices(tmp_path / "out") == [0, 1, 2]
    report = json.loads((tmp_path / "out" / "open_rs" / "train.report.json").read_text())
    assert report["dropped"] == [3, 4]


def test_leaks():
    # By hand: 20 different words, so 13 runs of eight.
    benchmark = (
        "one two three four five six seven eight nine ten " + "eleven twelve thirteen fourteen fifteen sixteen " * 1
    )
    benchmark += "seventeen eighteen nineteen twenty"
    tokens = benchmark.split()
    assert len(tokens) - NGRAM + 1 == 13
    training = [
        "One, TWO; $three$ {four} five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty!",
        " ".join(["before", *tokens[:14], "after"]),  # 7 of the 13 runs
        " ".join(["before", *tokens[:13], "after"]),  # 6 of the 13 runs
        " ".join(reversed(tokens)),
        r"\frac{1}{2}?",
        r"\frac12?",
        "",
    ]
    leaks = find_leaks(training, {"a": ["nothing", benchmark], "b": [r"$\frac {1} {2}$", "different"]})
    assert [(leak.row, leak.benchmark, leak.benchmark_row, leak.exact, leak.share) for leak in leaks] == [
        (0, "a", 1, True, 1.0),
        (1, "a", 1, False, round(7 / 13, 3)),
        (4, "b", 0, True, 1.0),
    ]
    assert words("A_{1}=90^\\circ") == ["a", "1", "90", "circ"]
    assert find_leaks(["What is 7-2?", "What is 7 + 2 ?"], {"a": ["What is $7+2$?"]}) == [Leak(1, "a", 0, 1.0, True)]


def test_contaminated_rows_are_reported_and_can_be_dropped(copy, tmp_path):
    message = prepare_open_rs(copy, tmp_path / "out", "--drop-contaminated", code=2)
    assert "--drop-contaminated needs the benchmarks" in message and "math500" in message
    assert files(tmp_path / "out") == []

    for source in SOURCES.values():
        if not source.training:
            row = dict.fromkeys(source.columns, "1")
            rows = [row | {source.question: f"Question {i} of {source.name}?"} for i in range(source.rows)]
            if source.name == "math500":
                rows[0] = row | {"problem": "What is $2 + 2$ ?"}
            write_copy(copy, source.path, rows, source.split)

    prepare_open_rs(copy, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "open_rs" / "train.report.json").read_text())
    assert report["leaks"] == [{"row": 1, "benchmark": "math500", "benchmark_row": 0, "share": 1.0, "exact": True}]
    assert report["rows"] == 3
    prepare_open_rs(copy, tmp_path / "out", "--drop-contaminated")
    assert indices(tmp_path / "out") == [0, 2]


def refused(copy: Path, out: Path, *arguments: str | Path) -> str:
    message = run("open-rs", "--local_dataset_path", copy, "--local_save_dir", out, *arguments, code=2)
    assert message.count("Error:") == 1
    assert "Traceback" not in message
    assert files(out) == []
    return " ".join(message.split("Error:")[1].split())


def test_bad_input_is_refused_in_one_sentence(copy, tmp_path):
    file, out = copy / "knoveleng" / "open-rs" / "train.jsonl", tmp_path / "out"
    good = file.read_text()

    assert "is not a folder" in refused(tmp_path / "nowhere", out)
    file.write_text(good.replace('"problem"', '"question"'))
    assert "lacks the column(s) problem; it has question, solution, answer, level" in refused(copy, out)
    file.write_text(good[:-25])
    assert "cannot be read (JSON parse error" in refused(copy, out)
    file.write_bytes(good.encode().replace(b"What", b"Wh\xe4t"))
    assert "is not UTF-8" in refused(copy, out)
    file.write_text("")
    assert "is empty" in refused(copy, out)
    write_copy(copy, "knoveleng/open-rs", [*PROBLEMS, {**PROBLEMS[0], "problem": " \n"}])
    assert "has no problem in row(s) 3" in refused(copy, out)
    message = run("all", "--revision", "main", "--local_dataset_path", copy, "--local_save_dir", out, code=2)
    assert "prepare them one by one" in message
    write_copy(copy, "HuggingFaceH4/aime_2024", [{"problem": "Why?", "answer": "1"}])
    message = run("aime24", "--local_dataset_path", copy, "--local_save_dir", out, code=2)
    assert "HuggingFaceH4/aime_2024 has 1 rows, and the benchmark has 30; download it again." in message
    file.unlink()
    assert "open-rs" in refused(copy, out)


def command(*arguments: str | Path, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "cw_plugin", "prepare", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        **kwargs,
    )


def test_a_full_disk_leaves_no_partial_file(copy, tmp_path):
    """The kernel refuses the write that goes past a limit, as it does on a full disk."""
    out = tmp_path / "out"
    texts = [" ".join(hashlib.sha256(f"{i} {j}".encode()).hexdigest() for j in range(40)) for i in range(200)]
    rows = [{**PROBLEMS[1], "problem": text} for text in texts]
    write_copy(copy, "knoveleng/open-rs", rows)
    # Set when the writing starts: the grading processes and the loader write no file of the user's.
    script = (
        "import resource, sys\n"
        "from cw_plugin.data import prepare\n"
        "from cw_plugin.cli import app\n"
        "write = prepare._write\n"
        "def limited(item): resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); write(item)\n"
        "prepare._write = limited\n"
        "app(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", script, *arguments(copy, out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2, result.stderr
    assert "train.parquet cannot be written" in result.stderr and "Traceback" not in result.stderr
    assert files(out) == ["open_rs/train.report.json"]
    assert [path.name for path in (out / "open_rs").iterdir()] == ["train.report.json"]


def test_no_network(tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    result = command("aime24", "--local_save_dir", tmp_path / "out", env=environment)
    assert result.returncode == 2
    assert "The hub cannot be reached for HuggingFaceH4/aime_2024" in result.stderr
    assert "Traceback" not in result.stderr and files(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "is a gated dataset on the Hub"),
        (404, "RepoNotFound", "The hub gives no HuggingFaceH4/aime_2024"),
        (404, "RevisionNotFound", "Revision 'v9' doesn't exist"),
        (500, "", "The hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses(tmp_path, status, code, message):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        result = command("aime24", "--revision", "v9", "--local_save_dir", tmp_path / "out", env=environment)
        server.shutdown()
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr and files(tmp_path / "out") == []


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """``prepare all`` over the real data, of which the training set is cut to 400 rows."""
    if not COPIES.is_dir():
        pytest.skip("needs local copies of the benchmarks, see README")
    folder = tmp_path_factory.mktemp("prepared")
    for source in SOURCES.values():
        target = folder / "in" / source.path
        target.mkdir(parents=True)
        file = COPIES / source.path / f"{source.split}.jsonl"
        if source.training:
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:400]
            (target / file.name).write_text("".join(lines), encoding="utf-8")
        else:
            shutil.copyfile(file, target / file.name)
    run("all", "--local_dataset_path", folder / "in", "--local_save_dir", folder / "out")
    return folder / "out"


def test_the_papers_data(prepared):
    counts = {name: pq.read_table(prepared / name).num_rows for name in files(prepared) if name.endswith(".parquet")}
    assert counts == {
        "open_rs/train.parquet": 400,
        "aime24/test.parquet": 30,
        "amc23/test.parquet": 40,
        "math500/test.parquet": 500,
        "minerva/test.parquet": 272,
        "olympiadbench/test.parquet": 675,
    }

    def row(name: str, index: int) -> tuple:
        values = pq.read_table(prepared / name / "test.parquet").to_pylist()[index]
        return values["data_source"], values["reward_model"]["ground_truth"], values["extra_info"]["level"]

    assert row("amc23", 0) == ("knoveleng/AMC-23", "27", None)
    assert row("math500", 0) == ("HuggingFaceH4/MATH-500", r"\left( 3, \frac{\pi}{2} \right)", "2")
    assert row("minerva", 0) == ("knoveleng/Minerva-Math", "1.6", None)
    assert row("olympiadbench", 0) == ("knoveleng/OlympiadBench", "2", None)
    units = [
        info["unit"] for info in pq.read_table(prepared / "olympiadbench" / "test.parquet")["extra_info"].to_pylist()
    ]
    assert sum(unit is not None for unit in units) == 8
    subjects = pq.read_table(prepared / "minerva" / "test.parquet")["extra_info"].to_pylist()
    assert subjects[0]["subject"] == "Introduction to Astronomy (8.282J Spring 2006)"


def test_verls_dataset_reads_the_file(prepared, tmp_path):
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = Tokenizer(models.BPE(alphabet, []))
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    config = OmegaConf.create(
        {
            "max_prompt_length": 4096,
            "cache_dir": str(tmp_path),
            "filter_overlong_prompts_workers": 1,
            "return_raw_chat": True,
        }
    )
    paths = [str(prepared / name / "test.parquet") for name in ("aime24", "amc23", "math500")]
    dataset = RLHFDataset(paths, tokenizer, config)
    assert len(dataset) == 570
    first, last = dataset[0], dataset[569]
    assert [turn["role"] for turn in first["raw_prompt"]] == ["system", "user"]
    assert first["raw_prompt"][0]["content"] == OPEN_RS
    assert (first["data_source"], first["index"]) == ("HuggingFaceH4/aime_2024", 0)
    assert (last["data_source"], last["index"]) == ("HuggingFaceH4/MATH-500", 499)
    golds = [
        json.loads(line)["answer"] for line in (COPIES / "HuggingFaceH4/MATH-500/test.jsonl").open(encoding="utf-8")
    ]
    assert last["reward_model"]["ground_truth"] == golds[499]
