"""The token page: its data against the record, and the page itself in a browser."""

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
from interpreter import PATIENCE, cli
from token_records import files_in, write_record

from cw_plugin.lab.reports.tokens import write_token_page
from cw_plugin.records import write

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

STRANGE = ["</script><script>document.title='x'</script>", "<!--", "@REST@", "\\1", "&lt;", "\u200b", "\n\n", "\ufffd"]
STRANGE += ["\ufffd", "", "   ", "\t", "\r\n", "ﬁ", "שלום", "\x07", " <b>", '"', "constructor", "__proto__"]


def decoded(page: str) -> tuple[dict, list[dict[str, np.ndarray]]]:
    """The index of a page, and the columns of its blocks."""
    (found,) = re.findall(r'<script type="application/json" id="index">(.*?)</script>', page, re.DOTALL)
    index = json.loads(found, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    blocks = []
    for text in re.findall(r'<script type="text/plain" id="block-\d+">(.*?)</script>', page):
        values = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(len(index["columns"]), -1)
        blocks.append({name: row.view(kind) for (name, kind), row in zip(index["columns"], values, strict=True)})
    return index, blocks


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A run with two steps, one of two batches, and a response of strange tokens. Of the last batch one group fits."""
    rng, files = np.random.default_rng(7), files_in(tmp_path / "run" / "checkpoints")
    for step, first in ((50, 0), (100, 10), (100, 20)):
        lengths = {first + group: [30, 12, len(STRANGE), 50] for group in (0, 3)}
        texts = {first: [["a"] * 30, ["b"] * 12, STRANGE, ["c"] * 50]}
        monkeypatch.setattr(write, "LIMIT", 150 if first == 20 else 300)
        write_record(files, step, rng, lengths, texts)
    return tmp_path / "run"


def test_the_page_holds_the_records_bit_for_bit(run, tmp_path):
    """Also numbers that are none, which never reach its JSON."""
    (file,) = run.rglob("step_000100.parquet")
    table = pq.read_table(file)
    spoilt = [("covariance", math.nan), ("covariance", math.inf), ("gaussian", math.nan), ("reward", math.nan)]
    for place, (name, value) in enumerate([*spoilt, ("gaussian", 0.5)], len(table) // 2):  # not below it
        values = table[name].to_numpy().copy()
        values[place] = value
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, file)
    write_token_page(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    index, blocks = decoded(page)
    assert [record["label"] for record in index["records"]] == ["step 50", "step 100", "step 100, batch 2"]

    for record, file in zip(
        index["records"], sorted(run.rglob("*.parquet"), key=lambda file: len(file.name)), strict=True
    ):
        table = pq.read_table(file)
        # "What is the remainder of 3 divided by 2?", in a chat template: what tells prompts apart.
        prompts = json.loads(table.schema.metadata[b"prompts"])
        questions = [re.findall(r"\d+ divided by \d+", prompt)[0] for prompt in prompts.values()]
        if len(prompts) == 1:  # nothing tells it apart
            questions = [" ".join(prompt.split()) for prompt in prompts.values()]
        assert [shown["question"] for shown in record["shown"]] == questions
        of_record = [blocks[int(shown["block"].removeprefix("block-"))] for shown in record["shown"]]
        extreme = [sum(block["gaussian"] < 0.5) for block in of_record]
        assert [shown["extreme"] for shown in record["shown"]] == extreme
        columns = {name: np.concatenate([block[name] for block in of_record]) for name, _ in index["columns"]}
        for name, written in columns.items():
            expected = table[name].to_numpy()
            assert written.dtype == expected.dtype and written.tobytes() == expected.tobytes(), name
        texts = table["text"].to_pylist()
        assert [index["text"][str(token)] for token in columns["token_id"]] == texts
        assert [shown["prompt"] for shown in record["shown"]] == list(prompts.values())
        assert (record["groups"], record["tokens"], record["tokens_held"]) == (2, 2 * (92 + len(STRANGE)), len(table))

        for side, sign in (("positive", 1), ("negative", -1)):
            c = sign * table["covariance"].to_numpy()
            expected = [int(i) for i in np.argsort(-c, kind="stable") if np.isfinite(c[i]) and c[i] > 0][:20]
            assert [sign * entry["covariance"] for entry in record["extremes"][side]] == c[expected].tolist()
            for entry, i in zip(record["extremes"][side], expected, strict=True):
                group, place = entry["place"]
                assert sum(len(block["row"]) for block in of_record[:group]) + place == i
                # The context is text of the same response, and all of it within reach.
                same = np.flatnonzero(columns["row"] == columns["row"][i]).tolist()
                before = "".join(texts[k] for k in same if i - 16 <= k < i)
                after = "".join(texts[k] for k in same if i < k <= i + 6)
                assert (entry["before"], entry["token"], entry["after"]) == (before, texts[i], after)
                assert entry["at"].endswith(f"row {columns['row'][i]}, position {columns['position'][i]}")


def test_the_command_chooses_steps_and_says_what_is_wrong(run, tmp_path):
    out = tmp_path / "page.html"
    result = cli("tokens", f"A & B={run}", "--out", out, "--steps", "51:100", COLUMNS="300")
    assert result.exit_code == 0 and result.output.strip() == str(out)
    assert "Tokens of A &amp; B" in out.read_text()
    assert [record["label"] for record in decoded(out.read_text())[0]["records"]] == ["step 100", "step 100, batch 2"]

    (tmp_path / "empty").mkdir()
    for name in ("one", "two"):
        shutil.copytree(run, tmp_path / "runs" / name)
    shutil.copytree(run, tmp_path / "damaged")
    (tmp_path / "damaged" / "checkpoints" / "tokens" / "step_000100.parquet").write_bytes(b"PAR1")
    for arguments, message in (
        ((run, "--steps", "7"), "has records of step 50, 100; --steps names none of them"),
        ((run, "--steps", "x"), "--steps must be one step"),
        ((tmp_path / "empty",), "holds no token record"),
        ((run, "--out", "/proc/page.html"), "/proc/page.html cannot be written"),
        ((run, "--out", tmp_path), f"{tmp_path} is a folder; give a file with --out, such as {tmp_path}/tokens.html"),
        ((tmp_path / "runs",), "holds 2 runs"),
        ((tmp_path / "damaged",), "step_000100.parquet cannot be read as a token record"),
    ):
        result = cli("tokens", *arguments, COLUMNS="300")
        assert result.exit_code == 2 and message in result.output


@pytest.fixture
def chromium():
    """Headless Chromium, which logs no error."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no Chromium with its chromedriver (Debian: apt install chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "window-size=1200,900"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(PATIENCE)
    try:
        yield driver
        assert [entry["message"] for entry in driver.get_log("browser")] == []
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium, run, tmp_path):
    """With the page. It is asked for what a person sees, not for the script's variables."""
    write_token_page(run, tmp_path / "page.html")
    chromium.get((tmp_path / "page.html").as_uri())
    settle(chromium)
    return chromium


def settle(browser) -> None:
    """Wait until every response has its tokens; the first are there much earlier."""
    browser.execute_async_script(
        "const done = arguments[0], all = () => [...document.querySelectorAll('.tokens')];"
        "(function look() { all().every((tokens) => tokens.firstChild) ? done() : setTimeout(look, 5); })();"
    )


def readout(browser) -> dict[str, str]:
    """What is said of the focused token, which can be seen: it is neither outside the window nor below something."""
    assert browser.execute_script(
        "const span = document.activeElement, box = span.getClientRects()[0];"
        "return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === span"
    )
    return browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('#readout dt')].map("
        "(name) => [name.textContent, name.nextElementSibling?.textContent]))"
    )


def test_extreme_tokens_are_reached_by_key_and_show_their_values(browser, run):
    from selenium.webdriver import ActionChains

    table = pq.read_table(run / "checkpoints" / "tokens" / "step_000050.parquet")
    rows = [table.filter(pc.equal(table["row"], row)) for row in (0, 2, 4, 6)]  # of the first prompt
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.tokens')[2].querySelectorAll('span')].map((t) => t.textContent)"
    )
    marked = {"\n\n": "↵\n↵\n", "\u200b": "[U+200B]", "": "∅", "\t": "⇥\t", "\r\n": "␍↵\n", "\x07": "[U+0007]"}
    assert shown == [marked.get(text, text) for text in STRANGE] and browser.title != "x"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    extremes = [
        (number, int(i)) for number, row in enumerate(rows) for i in np.flatnonzero(row["gaussian"].to_numpy() < 0.5)
    ]
    assert len(extremes) > 3
    for number, i in [*extremes, extremes[0]]:  # after the last, the first
        ActionChains(browser).send_keys("n").perform()
        said, token = readout(browser), rows[number].slice(i, 1).to_pylist()[0]
        assert json.loads(said["token"].removesuffix(", part of a character")) == token["text"]
        place = f"response {number + 1}, position {token['position']}, extreme"
        assert int(said["id"]) == token["token_id"] and said["place"].startswith(place)
        names = {"log-prob": "log_prob", "advantage A": "advantage", "covariance c": "covariance"}
        for name, column in (names | {"kernel w": "gaussian", "weight w̃": "weight"}).items():
            assert np.float32(said[name]) == np.float32(token[column]), name  # to the last bit


def test_responses_are_put_in_order_and_the_address_of_a_token_leads_back_to_it(browser, run):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, PATIENCE)

    def press(*keys: str) -> list[int]:
        """The rows of the responses, as they are then shown."""
        together = ActionChains(browser)
        for key in keys:
            together.key_down(key)
        for key in keys:
            together.key_up(key)
        together.perform()
        headings = browser.execute_script("return [...document.querySelectorAll('h3')].map((h) => h.textContent)")
        return [int(heading.rpartition(" ")[2]) for heading in headings]

    table = pq.read_table(run / "checkpoints" / "tokens" / "step_000100.parquet").to_pandas()
    reward = table[table.group == 13].groupby("row").reward.first()
    high, low = (sorted(reward.index, key=lambda row: sign * reward[row]) for sign in (-1, 1))
    press("t", "g")
    wait.until(lambda _: press() == [*reward.index])  # of the second step's second prompt
    assert [press("o"), press("o"), press("o"), press(Keys.SHIFT, "o")] == [high, low, [*reward.index], low]
    press("o", "c", "n")
    said, address = readout(browser), browser.find_element("css selector", "#readout a").get_attribute("href")
    for place in ("about:blank", address):
        browser.get(place)
    wait.until(lambda _: browser.find_elements("css selector", "#readout a"))
    settle(browser)
    assert readout(browser) == said and browser.find_element("tag name", "body").get_attribute("class") == "weight"


def test_the_list_of_extremes_leads_to_their_tokens_on_a_narrow_window_too(browser, run):
    table = pq.read_table(run / "checkpoints" / "tokens" / "step_000050.parquet")
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 400
    # The question is there as a whole; the whole prompt, with its template, at a click.
    assert browser.find_element("id", "question").text == "Prompt 1: 3 divided by 2"
    browser.execute_script("document.getElementById('question').click()")
    assert browser.execute_script(
        "const box = document.getElementById('prompt'); return box.scrollHeight <= box.clientHeight"
    )
    browser.execute_script("document.getElementById('extremes').open = true")
    most = np.argsort(table["covariance"].to_numpy(), kind="stable")[:20]
    buttons = browser.find_elements("xpath", "//h2[.='Most negative covariance']/following-sibling::ol[1]//button")
    assert len(buttons) == 20
    for number in (0, 19):
        text = buttons[number].text
        browser.execute_script("arguments[0].click()", buttons[number])
        browser.execute_async_script("setTimeout(arguments[0], 50)")
        settle(browser)
        token = table.slice(int(most[number]), 1).to_pylist()[0]
        assert np.float32(readout(browser)["covariance c"]) == np.float32(token["covariance"])
        assert f"· w {round(token['gaussian'], 3):g} ·" in text  # 6.64e-34 is 0
        assert f"prompt {[0, 3].index(token['group']) + 1}, row {token['row']}" in text


def test_the_page_names_the_weighting_and_its_settings_and_a_token_has_one_colour(chromium, tmp_path):
    """In the responses and in the list of extreme tokens: by its weight, which is not the Gaussian kernel here."""
    files = files_in(tmp_path / "run", weights="ar", alpha=0.9)
    write_record(files, 1, np.random.default_rng(0), {0: [5, 6]})
    write_token_page(tmp_path / "run", tmp_path / "page.html")
    chromium.get((tmp_path / "page.html").as_uri())
    settle(chromium)
    assert "The run used weights=ar, alpha=0.9: they are w̃" in chromium.find_element("id", "held").text
    for name in ("covariance", "weight"):
        chromium.find_element("css selector", f"[name=colour][value={name}]").click()
        colours = chromium.execute_script(
            "const colour = (of) => getComputedStyle(of).backgroundColor;"
            "return [...document.querySelectorAll('#extremes button')].map((button) => {"
            "button.click(); return [colour(button.querySelector('span')), colour(document.activeElement)]; })"
        )
        assert len(colours) > 5 and len({tuple(both) for both in colours}) > 1
        assert all(listed == shown for listed, shown in colours), name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_a_narrow_window_and_can_be_read_in_light_and_dark(scheme, chromium, tmp_path):
    assert cli("demo", "--out", tmp_path).exit_code == 0
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chromium.get((tmp_path / "report.html").as_uri())
    assert chromium.execute_script("return document.documentElement.scrollWidth") == 400
    answer = chromium.find_element("css selector", "p.answer")
    assert answer.location["y"] < chromium.find_element("css selector", "figure").location["y"]
    colours = chromium.execute_script(
        "return [document.body, arguments[0]].map((of) => getComputedStyle(of))"
        ".flatMap((style) => [style.backgroundColor, style.color])"
        ".map((c) => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 3)",
        answer,
    )
    paper, ink = colours[0], colours[3]
    assert paper - ink > 150 if scheme == "light" else ink - paper > 150
    # Without colours, lines still differ: each method has a dash of its own.
    dashes = chromium.execute_script(
        "return [...document.querySelectorAll('figure svg g[id^=line2d] > path')].map((p) => p.style.strokeDasharray)"
    )
    assert len(set(dashes)) > 1
