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
        words = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(len(index["columns"]), -1)
        blocks.append({name: row.view(kind) for (name, kind), row in zip(index["columns"], words, strict=True)})
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
        for name in ("row", "position", "log_prob", "advantage", "covariance", "kernel", "weight", "reward"):
            written = np.concatenate([block[name] for block in of_record])
            expected = table[name].to_numpy()
            assert written.dtype == expected.dtype and written.tobytes() == expected.tobytes(), name
        word = np.concatenate([block["token"] for block in of_record])
        assert [index["vocabulary"]["id"][i] for i in word] == table["token_id"].to_pylist()
        assert [index["vocabulary"]["text"][i] for i in word] == table["text"].to_pylist()
        prompts = json.loads(table.schema.metadata[b"prompts"])
        assert [shown["prompt"] for shown in record["shown"]] == list(prompts.values())
        assert (record["groups"], record["tokens"]) == (4, 2 * len(table))

        for side, sign in (("positive", 1), ("negative", -1)):
            c = sign * table["covariance"].to_numpy()
            expected = np.sort(c[c > 0])[::-1][:20]
            assert [sign * entry["covariance"] for entry in record["extremes"][side]] == expected.tolist()
            for entry in record["extremes"][side]:
                group, i = entry["place"]
                assert sign * of_record[group]["covariance"][i] == sign * entry["covariance"]
                # The context is text of the same response, and all of it within reach.
                same = of_record[group]["row"] == of_record[group]["row"][i]
                texts = [index["vocabulary"]["text"][word] for word in of_record[group]["token"]]
                before = "".join(
                    t for t, its in zip(texts[max(0, i - 16) : i], same[max(0, i - 16) : i], strict=True) if its
                )
                after = "".join(t for t, its in zip(texts[i + 1 : i + 7], same[i + 1 : i + 7], strict=True) if its)
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

    code, printed = run_command(run, "--out", out, "--steps", "7")
    assert code == 2 and "has records of step 50, 100, none of them in --steps" in printed
    code, printed = run_command(tmp_path / "nothing")
    assert code == 2 and "nothing does not exist" in printed
    (tmp_path / "empty").mkdir()
    code, printed = run_command(tmp_path / "empty")
    assert code == 2 and "holds no token record" in printed and "record_every" in printed
    code, printed = run_command(run, "--out", "/proc/page.html")
    assert code == 2 and "/proc/page.html cannot be written" in printed
    shutil.copytree(run, tmp_path / "runs" / "one")
    shutil.copytree(run, tmp_path / "runs" / "two")
    code, printed = run_command(tmp_path / "runs")
    assert code == 2 and "holds 2 runs" in printed
    (run / "checkpoints" / "tokens" / "step_000100.parquet").write_bytes(b"PAR1")
    code, printed = run_command(run, "--out", out)
    assert code == 2 and "step_000100.parquet cannot be read as a token record" in printed


class Page:
    """A page in headless Chromium. It is asked for what a person sees and does, not for the script's variables."""

    def __init__(self) -> None:
        webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for argument in ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"):
            options.add_argument(f"--{argument}")
        for argument in ("disable-component-update", "disable-sync", "window-size=1200,900"):
            options.add_argument(f"--{argument}")
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_script_timeout(30)

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

    def select(self, name: str, option: int) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.driver.find_element("id", name)).select_by_index(option)
        self.driver.execute_async_script("setTimeout(arguments[0], 50)")
        self.settle()

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

    def colours(self) -> list[list[str]]:
        return self.js(
            "return [...document.querySelectorAll('.tokens')].map("
            "(tokens) => [...tokens.querySelectorAll('span')].map((span) => getComputedStyle(span).backgroundColor))"
        )

    def in_view(self) -> bool:
        """Whether the focused token can be seen: not outside the window, and not below something else."""
        return self.js(
            "const span = document.activeElement, box = span.getClientRects()[0];"
            "return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === span"
        )

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def page():
    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no Chromium with its chromedriver (Debian: apt install chromium-driver)")
    opened = Page()
    yield opened
    opened.driver.quit()


class Group:
    """What numpy says of a group in a record: a list for each response, in the order of the batch."""

    def __init__(self, table: pa.Table, group: int) -> None:
        of_group = table.filter(pc.equal(table["group"], group))
        self.rows = [of_group.filter(pc.equal(of_group["row"], row)) for row in of_group["row"].unique()]
        self.rewards = [float(row["reward"][0].as_py()) for row in self.rows]

    def extremes(self, order: list[int]) -> list[list[int]]:
        """[place of the response, token] of all extreme tokens, the responses in this order."""
        return [
            [place, int(i)]
            for place, response in enumerate(order)
            for i in np.flatnonzero(self.rows[response]["kernel"].to_numpy() < 0.5)
        ]

    def check(self, shown: dict[str, str], response: int, i: int) -> None:
        """The readout names this token's values, each to the last bit of a float32."""
        token = self.rows[response].slice(i, 1).to_pylist()[0]
        assert json.loads(shown["token"].removesuffix(", part of a character")) == token["text"]
        assert int(shown["id"]) == token["token_id"]
        names = {"log-prob": "log_prob", "advantage A": "advantage", "covariance c": "covariance"}
        for name, column in (names | {"kernel w": "kernel", "weight w̃": "weight"}).items():
            assert np.float32(shown[name]) == np.float32(token[column]), name
        assert shown["place"].endswith(", extreme") == (token["kernel"] < 0.5)
        assert f"position {token['position']}" in shown["place"]


@pytest.fixture
def opened(page, tmp_path):
    """A page of two steps with three and two groups, in the browser; and the tables it was made of."""
    rng, folder = np.random.default_rng(2), tmp_path / "run"
    tables = [
        write_record(folder / "tokens" / "step_000050.parquet", rng, {g: [150, 90, 200, 40] for g in (0, 3, 4)}),
        write_record(folder / "tokens" / "step_000100.parquet", rng, {g: [80, 250, 60] for g in (1, 2)}),
    ]
    write_token_page(folder, tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    yield page, tables
    assert page.errors() == []


def test_the_browser_shows_every_token_of_the_chosen_step_and_prompt(opened):
    page, tables = opened
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    assert page.js("return document.getElementById('held').textContent").startswith(
        f"The record of step 50 holds 3 of 6 prompt groups, and {len(tables[0]):,} of {2 * len(tables[0]):,} tokens."
    )
    for step, place, number in ((0, 2, 4), (1, 1, 2)):
        page.select("record", step)
        page.select("group", place)
        group = Group(tables[step], number)
        assert page.js("return document.getElementById('prompt').textContent").count(f"{17 * number + 3} divided by")
        assert page.js("return document.getElementById('group').selectedOptions[0].textContent").startswith(
            f"{place + 1}:"
        )
        headings = page.js("return [...document.querySelectorAll('article h3')].map((h) => h.textContent)")
        for heading, row in zip(headings, group.rows, strict=True):
            assert f"{len(row)} tokens, {int((row['kernel'].to_numpy() < 0.5).sum())} extreme" in heading
            assert np.float32(re.search(r"reward (\S+)", heading)[1]) == np.float32(row["reward"][0].as_py())
        # But for the marks of line breaks and tabs, the text is the response's, with its spaces.
        shown = [[re.sub("[↵⇥]", "", text) for text in row] for row in page.texts()]
        assert shown == [row["text"].to_pylist() for row in group.rows]
    # One colour for each level of covariance and sign; without one, what is below 0.4 sigma.
    c, w = (np.concatenate([row[name].to_numpy() for row in group.rows]) for name in ("covariance", "kernel"))
    levels = np.searchsorted([0.4, 0.8, 1.17741, 2, 3, 4.5], np.sqrt(-2 * np.log(np.maximum(w.astype(float), 1e-300))))
    colours = np.array([colour for row in page.colours() for colour in row])
    assert set(colours[levels == 0]) == {"rgba(0, 0, 0, 0)"}
    seen = [set(colours[(levels == n) & (np.sign(c) == sign)]) for sign in (-1, 1) for n in range(1, 7)]
    assert all(len(found) <= 1 for found in seen) and sum(map(len, seen)) == len(set.union(*seen)) > 8


def test_extreme_tokens_are_reached_by_key_in_the_order_shown(opened):
    page, tables = opened
    group = Group(tables[0], 0)
    order = list(range(len(group.rows)))
    expected = group.extremes(order)
    assert len(expected) > 10
    for place, i in [*expected, expected[0]]:  # after the last, the first
        page.press("n")
        assert page.focused() == [place, i] and page.in_view()
        group.check(page.readout(), order[place], i)
    page.press("N")
    assert page.focused() == expected[-1] and page.in_view()
    # By reward, ties as in the batch; the focus stays with its token.
    order.sort(key=lambda response: -group.rewards[response])
    assert order != sorted(order)
    page.press("o")
    place, i = expected[-1]
    assert page.focused() == [order.index(place), i] and page.in_view()
    assert [len(response) for response in page.texts()] == [len(group.rows[response]) for response in order]
    ahead = group.extremes(order)
    at = ahead.index([order.index(place), i])
    page.press("n")
    assert page.focused() == ahead[(at + 1) % len(ahead)]


def test_the_list_of_extremes_leads_to_their_tokens_on_a_narrow_window_too(opened, tmp_path):
    page, tables = opened
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(tmp_path / "page.html")
        assert page.js("return document.documentElement.scrollWidth") == 400
        # The question is there as a whole; the whole prompt, with its template, at a click.
        assert page.js("return document.getElementById('question').textContent") == "Prompt 1: 3 divided by 2"
        page.js("document.getElementById('question').click()")
        assert page.js("const box = document.getElementById('prompt'); return box.scrollHeight <= box.clientHeight")
        page.js("document.getElementById('extremes').open = true")
        most = np.argsort(tables[0]["covariance"].to_numpy(), kind="stable")[:20]
        buttons = page.driver.find_elements(
            "xpath", "//h2[.='Most negative covariance']/following-sibling::ol[1]//button"
        )
        assert len(buttons) == 20
        for number in (0, 19):
            text = buttons[number].text
            page.js("arguments[0].click()", buttons[number])
            page.driver.execute_async_script("setTimeout(arguments[0], 50)")
            page.settle()
            token = tables[0].slice(int(most[number]), 1).to_pylist()[0]
            assert page.in_view() and np.float32(page.readout()["covariance c"]) == np.float32(token["covariance"])
            assert f"· w {round(token['kernel'], 3):g} ·" in text  # 6.64e-34 is 0
            assert f"prompt {[0, 3, 4].index(token['group']) + 1}, row {token['row']}" in text
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_strange_tokens_are_shown_as_text(page, run, tmp_path):
    write_token_page(run, tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert page.js("return document.title") == "Tokens of run"
    shown = dict(zip(STRANGE, page.texts()[2], strict=True))
    marked = {"\n\n": "↵\n↵\n", "\u200b": "[U+200B]", "": "∅", "\t": "⇥\t", "\r\n": "␍↵\n", "\x07": "[U+0007]"}
    assert shown == {text: marked.get(text, text) for text in STRANGE}
    (tmp_path / "page.html").write_text((tmp_path / "page.html").read_text().split('id="block-1"')[0])
    assert page.errors() == []
    page.open(tmp_path / "page.html")
    page.press("g")
    page.driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert "is the file complete" in page.js("return document.getElementById('responses').textContent")
    page.errors()  # the browser's, which say the same
