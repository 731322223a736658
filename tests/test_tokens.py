"""The token page: its data against the record, and the page itself in a browser."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from token_records import write_record
from typer.testing import CliRunner

from cw_plugin.cli import app
from cw_plugin.reports import tokens
from cw_plugin.reports.tokens import write_token_page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

STRANGE = ["</script><script>document.title='x'</script>", "<!--", "@REST@", "\\1", "&lt;", "\u200b", "\n\n", "\ufffd"]
STRANGE += ["\ufffd", "", "   ", "\t", "\r\n", "ﬁ", "שלום", "\x07", " <b>", '"']


def run_command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tokens", *map(str, arguments)], env={"COLUMNS": "300"})
    return result.exit_code, result.stdout + result.stderr


def decoded(page: str) -> tuple[dict, list[dict[str, np.ndarray]]]:
    """The index of a page, and the columns of its blocks."""
    (found,) = re.findall(r'<script type="application/json" id="index">(.*?)</script>', page, re.DOTALL)
    index = json.loads(found)
    blocks = []
    for text in re.findall(r'<script type="text/plain" id="block-\d+">(.*?)</script>', page):
        values = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(len(index["columns"]), -1)
        blocks.append({name: row.view(kind) for (name, kind), row in zip(index["columns"], values, strict=True)})
    return index, blocks


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with two steps, one of two batches, and a response of strange tokens."""
    rng, folder = np.random.default_rng(1), tmp_path / "run"
    names = ("step_000050", "step_000100", "step_000100-2")
    for name, first in zip(names, (0, 10, 20), strict=True):
        lengths = {first + group: [30, 12, len(STRANGE), 50] for group in (0, 3)}
        texts = {first: [["a"] * 30, ["b"] * 12, STRANGE, ["c"] * 50]}
        write_record(folder / "checkpoints" / "tokens" / f"{name}.parquet", rng, lengths, responses=texts)
    return folder


def test_the_page_holds_the_records_bit_for_bit(run, tmp_path):
    size = write_token_page(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert size == len(page.encode())
    index, blocks = decoded(page)
    assert [record["label"] for record in index["records"]] == ["step 50", "step 100", "step 100, batch 2"]

    for record, file in zip(
        index["records"], sorted(run.rglob("*.parquet"), key=lambda file: len(file.name)), strict=True
    ):
        table = pq.read_table(file)
        # "What is the remainder of 3 divided by 2?", in a chat template: what tells prompts apart.
        groups = dict.fromkeys(table["group"].to_pylist())
        questions = [f"{17 * group + 3} divided by {group + 2}" for group in groups]
        assert [shown["question"] for shown in record["shown"]] == questions
        of_record = [blocks[int(shown["block"].removeprefix("block-"))] for shown in record["shown"]]
        columns = {name: np.concatenate([block[name] for block in of_record]) for name, _ in index["columns"]}
        for name, written in columns.items():
            expected = table[name].to_numpy()
            assert written.dtype == expected.dtype and written.tobytes() == expected.tobytes(), name
        texts = table["text"].to_pylist()
        assert [index["text"][str(token)] for token in columns["token_id"]] == texts
        prompts = json.loads(table.schema.metadata[b"prompts"])
        assert [shown["prompt"] for shown in record["shown"]] == list(prompts.values())
        assert (record["groups"], record["tokens"]) == (4, 2 * len(table))

        for side, sign in (("positive", 1), ("negative", -1)):
            c = sign * table["covariance"].to_numpy()
            expected = [int(i) for i in np.argsort(-c, kind="stable")[:20] if c[i] > 0]
            assert [sign * entry["covariance"] for entry in record["extremes"][side]] == c[expected].tolist()
            for entry, i in zip(record["extremes"][side], expected, strict=True):
                group, place = entry["place"]
                assert sum(len(block["row"]) for block in of_record[:group]) + place == i
                # The context is text of the same response, and all of it within reach.
                same = np.flatnonzero(columns["row"] == columns["row"][i]).tolist()
                before = "".join(texts[k] for k in same if i - 16 <= k < i)
                after = "".join(texts[k] for k in same if i < k <= i + 6)
                assert (entry["before"], entry["token"], entry["after"]) == (before, texts[i], after)


def test_a_number_that_is_none_never_reaches_the_pages_json(tmp_path):
    file = tmp_path / "tokens" / "step_000001.parquet"
    table = write_record(file, np.random.default_rng(0), {0: [30, 30]})
    metadata = pq.read_table(file).schema.metadata
    for name, value in (("covariance", math.nan), ("covariance", math.inf), ("kernel", math.nan), ("reward", math.nan)):
        values = table[name].to_numpy().copy()
        values[len(values) // 2 + (value == math.inf)] = value
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table.replace_schema_metadata(metadata), file)
    write_token_page(tmp_path, tmp_path / "page.html")
    index, (block,) = decoded((tmp_path / "page.html").read_text())
    assert block["covariance"].tobytes() == table["covariance"].to_numpy().tobytes()
    finite = np.sort(table["covariance"].to_numpy()[np.isfinite(table["covariance"].to_numpy())])
    listed = [entry["covariance"] for entry in index["records"][0]["extremes"]["positive"]]
    assert listed == finite[::-1][:20][finite[::-1][:20] > 0].tolist() and not re.search(
        "NaN|Infinity", json.dumps(index)
    )


def test_the_command_chooses_steps_and_says_what_is_wrong(run, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    code, printed = run_command(run, "--out", out, "--steps", "51:100")
    assert code == 0 and printed.strip() == str(out)
    assert [record["label"] for record in decoded(out.read_text())[0]["records"]] == ["step 100", "step 100, batch 2"]

    monkeypatch.setattr(tokens, "BIG", 1000)
    assert "the page has 0 MB; fewer steps" in run_command(run, "--out", out)[1]

    (tmp_path / "empty").mkdir()
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    shutil.copytree(run, tmp_path / "damaged")
    (tmp_path / "damaged" / "checkpoints" / "tokens" / "step_000100.parquet").write_bytes(b"PAR1")
    for arguments, message in (
        ((run, "--steps", "7"), "has records of step 50, 100; --steps names none of them"),
        ((run, "--steps", "x"), "--steps must be one step"),
        ((tmp_path / "nothing",), "nothing does not exist"),
        ((tmp_path / "empty",), "holds no token record"),
        ((run, "--out", "/proc/page.html"), "/proc/page.html cannot be written"),
        ((tmp_path / "runs",), "holds 2 runs"),
        ((tmp_path / "damaged",), "step_000100.parquet cannot be read as a token record"),
    ):
        code, printed = run_command(*arguments)
        assert code == 2 and message in printed


class Page:
    """A page in headless Chromium. It is asked for what a person sees and does, not for the script's variables."""

    def __init__(self) -> None:
        webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for argument in (
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-background-networking",
            "window-size=1200,900",
        ):
            options.add_argument(f"--{argument}")
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_script_timeout(60)

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        self.settle()

    def js(self, script: str, *arguments: object):
        return self.driver.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until every response has its tokens; the first are there much earlier."""
        self.driver.execute_async_script(
            "const done = arguments[0], all = () => [...document.querySelectorAll('.tokens')];"
            "(function look() { all().every((tokens) => tokens.firstChild) ? done() : setTimeout(look, 5); })();"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> list[int] | None:
        """Of the token with the focus: the place of its response on the page, and its own in the response."""
        return self.js(
            "const span = document.activeElement, tokens = span.closest('.tokens');"
            "const all = [...document.querySelectorAll('.tokens')];"
            "return tokens && [all.indexOf(tokens), [...tokens.querySelectorAll('span')].indexOf(span)]"
        )

    def readout(self) -> dict[str, str]:
        return self.js(
            "return Object.fromEntries([...document.querySelectorAll('#readout dt')].map("
            "(name) => [name.textContent, name.nextElementSibling?.textContent]))"
        )

    def texts(self) -> list[list[str]]:
        return self.js(
            "return [...document.querySelectorAll('.tokens')].map("
            "(tokens) => [...tokens.querySelectorAll('span')].map((span) => span.textContent))"
        )

    def in_view(self) -> bool:
        """Whether the focused token can be seen: not outside the window, and not below something else."""
        return self.js(
            "const span = document.activeElement, box = span.getClientRects()[0];"
            "return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === span"
        )


@pytest.fixture
def page(run, tmp_path):
    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no Chromium with its chromedriver (Debian: apt install chromium-driver)")
    write_token_page(run, tmp_path / "page.html")
    opened = Page()
    opened.open(tmp_path / "page.html")
    yield opened
    assert [entry["message"] for entry in opened.driver.get_log("browser")] == []
    opened.driver.quit()


def test_extreme_tokens_are_reached_by_key_and_show_their_values(page, run):
    table = pq.read_table(run / "checkpoints" / "tokens" / "step_000050.parquet")
    rows = [table.filter(pc.equal(table["row"], row)) for row in (0, 2, 4, 6)]  # of the first prompt
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    marked = {"\n\n": "↵\n↵\n", "\u200b": "[U+200B]", "": "∅", "\t": "⇥\t", "\r\n": "␍↵\n", "\x07": "[U+0007]"}
    assert page.texts()[2] == [marked.get(text, text) for text in STRANGE] and page.js("return document.title") != "x"
    rewards = [row["reward"][0].as_py() for row in rows]
    for pressed, order in (("", [0, 1, 2, 3]), ("o", sorted(range(4), key=lambda row: -rewards[row]))):
        page.press(*pressed)  # by reward; ties as in the batch
        expected = [(place, int(i)) for place, row in enumerate(order)
                    for i in np.flatnonzero(rows[row]["kernel"].to_numpy() < 0.5)]  # fmt: skip
        assert len(expected) > 3
        start = expected.index(tuple(page.focused())) + 1 if pressed else 0  # the focus stays with its token
        for place, i in [*expected[start:], *expected[:start]]:  # after the last, the first
            page.press("n")
            assert page.focused() == [place, i] and page.in_view()
            shown, token = page.readout(), rows[order[place]].slice(i, 1).to_pylist()[0]
            assert json.loads(shown["token"].removesuffix(", part of a character")) == token["text"]
            assert int(shown["id"]) == token["token_id"] and f"position {token['position']}, extreme" in shown["place"]
            names = {"log-prob": "log_prob", "advantage A": "advantage", "covariance c": "covariance"}
            for name, column in (names | {"kernel w": "kernel", "weight w̃": "weight"}).items():
                assert np.float32(shown[name]) == np.float32(token[column]), name  # to the last bit


def test_the_list_of_extremes_leads_to_their_tokens_on_a_narrow_window_too(page, run):
    table = pq.read_table(run / "checkpoints" / "tokens" / "step_000050.parquet")
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert page.js("return document.documentElement.scrollWidth") == 400
    # The question is there as a whole; the whole prompt, with its template, at a click.
    assert page.js("return document.getElementById('question').textContent") == "Prompt 1: 3 divided by 2"
    page.js("document.getElementById('question').click()")
    assert page.js("const box = document.getElementById('prompt'); return box.scrollHeight <= box.clientHeight")
    page.js("document.getElementById('extremes').open = true")
    most = np.argsort(table["covariance"].to_numpy(), kind="stable")[:20]
    buttons = page.driver.find_elements("xpath", "//h2[.='Most negative covariance']/following-sibling::ol[1]//button")
    assert len(buttons) == 20
    for number in (0, 19):
        text = buttons[number].text
        page.js("arguments[0].click()", buttons[number])
        page.driver.execute_async_script("setTimeout(arguments[0], 50)")
        page.settle()
        token = table.slice(int(most[number]), 1).to_pylist()[0]
        assert page.in_view() and np.float32(page.readout()["covariance c"]) == np.float32(token["covariance"])
        assert f"· w {round(token['kernel'], 3):g} ·" in text  # 6.64e-34 is 0
        assert f"prompt {[0, 3].index(token['group']) + 1}, row {token['row']}" in text
