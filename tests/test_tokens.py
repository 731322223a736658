"""The token page: its data against the record, and the page itself in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
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
        assert [shown["label"].split(":")[0] for shown in record["shown"]] == [
            str(group) for group in dict.fromkeys(table["group"].to_pylist())
        ]
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


def test_prompts_are_told_apart_by_what_they_do_not_share(run, tmp_path):
    write_token_page(run, tmp_path / "page.html")
    index, _ = decoded((tmp_path / "page.html").read_text())
    # "What is the remainder of 3 divided by 2?" and "... of 54 divided by 5?", in a chat template
    assert [shown["label"] for shown in index["records"][0]["shown"]] == ["0: 3 divided by 2", "3: 54 divided by 5"]


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


def test_nothing_is_fetched_and_the_page_says_what_it_holds(opened):
    page, tables = opened
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    assert page.js("return document.getElementById('held').textContent").startswith(
        f"The record of step 50 holds 3 of 6 prompt groups, and {len(tables[0]):,} of {2 * len(tables[0]):,} tokens."
    )
    assert page.texts()[0][-1] == "<|im_end|>"


def test_step_and_prompt_can_be_chosen(opened):
    page, tables = opened
    for step, group, number in ((0, 1, 3), (0, 2, 4), (1, 0, 1), (1, 1, 2)):
        page.select("record", step)
        page.select("group", group)
        rows = Group(tables[step], number).rows
        assert page.js("return document.getElementById('prompt').textContent").count(f"{17 * number + 3} divided by")
        assert [len(response) for response in page.texts()] == [len(row) for row in rows]
        headings = page.js("return [...document.querySelectorAll('article h3')].map((h) => h.textContent)")
        for heading, row in zip(headings, rows, strict=True):
            extreme = int((row["kernel"].to_numpy() < 0.5).sum())
            assert f"{len(row)} tokens, {extreme} extreme" in heading
            assert np.float32(re.search(r"reward (\S+)", heading)[1]) == np.float32(row["reward"][0].as_py())
        # But for the marks of line breaks, tabs, and spaces that stand alone, the text is the response's.
        own = [
            [re.sub("^ +$", lambda all: "·" * len(all[0]), text) for text in row["text"].to_pylist()] for row in rows
        ]
        assert [[re.sub("[↵⇥]", "", text) for text in row] for row in page.texts()] == own


def test_colours_follow_covariance_or_weight(opened):
    page, tables = opened
    group = Group(tables[0], 0)
    by_covariance = [colour for row in page.colours() for colour in row]
    page.driver.find_element("css selector", "input[value=weight]").click()
    by_weight = [colour for row in page.colours() for colour in row]
    page.press("c")
    assert [colour for row in page.colours() for colour in row] == by_covariance

    c, w, weight = (
        np.concatenate([row[name].to_numpy() for row in group.rows]) for name in ("covariance", "kernel", "weight")
    )
    sign, clear = np.sign(c), "rgba(0, 0, 0, 0)"
    sigmas = np.sqrt(-2 * np.log(np.maximum(w.astype(float), 1e-300)))
    levels = np.searchsorted([0.4, 0.8, 1.17741, 2, 3, 4.5], sigmas)
    assert {colour == clear for colour in np.array(by_covariance)[levels == 0]} == {True}
    seen = {
        (s, level): set(np.array(by_covariance)[(levels == level) & (sign == s)])
        for s in (-1, 1)
        for level in range(1, 7)
    }
    assert all(len(colours) <= 1 for colours in seen.values()), "one colour for each level and sign"
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) > 8, "no colour for two of them"
    levels = 6 - np.searchsorted([0.01, 0.1, 0.25, 0.5, 0.75, 0.95], weight, side="right")
    seen = {level: set(np.array(by_weight)[levels == level]) for level in range(7)}
    assert all(len(colours) <= 1 for colours in seen.values()) and seen[0] == {clear}
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) > 4


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance."""
    rgb = np.array(re.findall(r"[\d.]+", colour)[:3], dtype=float) / 255
    return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def test_colours_can_be_read_in_grey_and_without_hue(opened):
    page, _ = opened

    def scale() -> list[list[str]]:
        return page.js(
            "return [...document.querySelectorAll('#scale span')].map((span) => [span.textContent, "
            "...['backgroundColor', 'borderBottomColor', 'color'].map((name) => getComputedStyle(span)[name])])"
        )

    covariance = scale()
    assert [name[0] for name, *_ in covariance[:6]] == ["-"] * 6 and covariance[6][0] == "0"
    page.press("c")
    negative, positive, weight = covariance[5::-1], covariance[7:], scale()[1:]
    for hue in (negative, positive, weight):
        light = np.array([luminance(background) for _, background, *_ in hue])
        assert (np.diff(light) < -0.05).all(), "the more extreme, the darker"
        assert ((light + 0.05) / (luminance(hue[0][3]) + 0.05) >= 4.5).all(), "text can be read (WCAG AA)"
        np.testing.assert_allclose(light, [luminance(background) for _, background, *_ in positive], rtol=0.02)
    assert {line for _, _, line, _ in negative} == {"rgb(17, 17, 17)"}
    assert "rgb(17, 17, 17)" not in {line for _, _, line, _ in positive}


def test_hover_and_focus_show_exact_values(opened):
    from selenium.webdriver import ActionChains

    page, tables = opened
    group = Group(tables[0], 0)
    spans = page.driver.find_elements("css selector", "article:first-of-type .tokens span")
    for i in (0, 7, 20):
        ActionChains(page.driver).move_to_element(spans[i]).perform()
        group.check(page.readout(), 0, i)
    spans[7].click()
    ActionChains(page.driver).move_to_element(spans[20]).perform()
    ActionChains(page.driver).move_to_element(page.driver.find_element("tag name", "h1")).perform()
    group.check(page.readout(), 0, 7)  # the focused token's again
    assert page.focused() == [0, 7]
    # A jump that scrolls the text below a pointer at rest shows the token jumped to.
    ActionChains(page.driver).move_to_element(spans[20]).perform()
    page.press("r", "r", "r")
    time.sleep(0.3)
    assert page.js("return scrollY") > 0 and page.focused() == [3, 0]
    group.check(page.readout(), 3, 0)
    assert page.js("return document.getElementById('readout').getAttribute('role')") == "status"


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
    for k in range(1, 6):
        page.press("n")
        assert page.focused() == ahead[(at + k) % len(ahead)]
    page.press("o")
    order.sort(key=lambda response: (group.rewards[response], response))
    assert [len(response) for response in page.texts()] == [len(group.rows[response]) for response in order]


def test_the_list_of_extremes_leads_to_their_tokens(opened):
    page, tables = opened
    table = tables[0]
    for title, sign in (("Largest covariance", 1), ("Most negative covariance", -1)):
        most = np.argsort(-sign * table["covariance"].to_numpy(), kind="stable")[:20]
        xpath = f"//h2[.='{title}']/following-sibling::ol[1]//button"
        buttons = page.driver.find_elements("xpath", xpath)
        assert len(buttons) == 20
        for number in (0, 3, 19):
            buttons[number].click()
            page.driver.execute_async_script("setTimeout(arguments[0], 50)")
            page.settle()
            token = table.slice(int(most[number]), 1).to_pylist()[0]
            assert page.in_view()
            assert np.float32(page.readout()["covariance c"]) == np.float32(token["covariance"])
            group = page.js("return document.getElementById('group').selectedOptions[0].textContent")
            assert group.startswith(f"{token['group']}:")


def test_a_token_has_an_address(opened, tmp_path):
    page, tables = opened
    for step, number, i in ((0, 1, 170), (1, 1, 389)):  # in the second response; the last of all
        page.driver.get("about:blank")
        page.driver.get(f"{(tmp_path / 'page.html').as_uri()}#record={step}&group={number}&token={i}&colour=weight")
        page.settle()
        time.sleep(0.2)
        rows = Group(tables[step], [[0, 3, 4], [1, 2]][step][number]).rows
        place = sum(np.cumsum([len(row) for row in rows]) <= i)
        i -= sum(len(row) for row in rows[:place])
        assert page.focused() == [place, i] and page.in_view()
        assert page.js("return document.body.className") == "weight"
        address = page.driver.find_element("css selector", "#readout a").get_attribute("href")
        assert address == page.driver.current_url


def test_everything_works_by_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    page, tables = opened

    def tab_to(css: str) -> None:
        for _ in range(80):
            if page.js("return document.activeElement.matches(arguments[0])", css):
                return
            page.press(Keys.TAB)
        raise AssertionError(f"the Tab key does not reach {css}")

    tab_to("#record")
    page.press(Keys.DOWN)
    page.settle()
    tab_to("#group")
    page.press(Keys.DOWN)
    page.settle()
    group = Group(tables[1], 2)
    assert [len(response) for response in page.texts()] == [len(row) for row in group.rows]
    tab_to("input[value=covariance]")
    page.press(Keys.RIGHT)
    assert page.js("return document.body.className") == "weight"
    tab_to("#next")
    page.press(Keys.ENTER)
    assert page.focused() == group.extremes([0, 1, 2])[0]
    place, i = page.focused()
    page.press(Keys.RIGHT)
    assert page.focused() == [place, i + 1]
    group.check(page.readout(), place, i + 1)
    page.press(Keys.LEFT, Keys.LEFT)
    assert page.focused() == ([place, i - 1] if i else [2, len(group.rows[2]) - 1])
    page.press("r")
    assert page.focused()[1] == 0
    page.press("l", Keys.TAB, Keys.ENTER)  # the second of the list
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    second = np.sort(tables[1]["covariance"].to_numpy())[-2]
    assert np.float32(page.readout()["covariance c"]) == second and page.in_view()
    page.press("g")
    page.settle()
    page.press("t")
    page.settle()
    assert page.js("return document.getElementById('record').selectedIndex") == 0
    page.press(Keys.HOME, "?")
    assert page.js("return document.getElementById('help').open")
    # Someone whose software types letters can switch them off (WCAG 2.1.4).
    page.driver.find_element("id", "keys").click()
    page.js("document.activeElement.blur()")
    page.press("c")
    assert page.js("return document.body.className") == "weight"


def test_strange_tokens_are_shown_as_text(page, run, tmp_path):
    write_token_page(run, tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert page.js("return document.title") == "Tokens of run"
    shown = dict(zip(STRANGE, page.texts()[2], strict=True))
    assert (
        shown
        | {
            STRANGE[0]: STRANGE[0],
            "\n\n": "↵\n↵\n",
            "\u200b": "[U+200B]",
            "": "∅",
            "   ": "···",
            "\t": "⇥\t",
            "\r\n": "␍↵\n",
            "\x07": "[U+0007]",
            " <b>": " <b>",
            "@REST@": "@REST@",
        }
        == shown
    )
    assert page.errors() == []


def test_records_without_extremes_or_tokens(page, tmp_path):
    equal = write_record(tmp_path / "tokens" / "step_000001.parquet", np.random.default_rng(0), {0: [5, 5]}, "none")
    ones = pa.array(np.ones(len(equal), np.float32))
    still = equal.set_column(equal.column_names.index("kernel"), "kernel", ones)
    about = {"step": "1", "scope": "group", "kernel": "none", "groups": "8", "tokens": "80", "prompts": "{}"}
    pq.write_table(still.replace_schema_metadata(about), tmp_path / "tokens" / "step_000001.parquet")
    empty = still.slice(0, 0).replace_schema_metadata(about | {"step": "2"})
    pq.write_table(empty, tmp_path / "tokens" / "step_000002.parquet")
    write_token_page(tmp_path, tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert "plain GRPO (kernel=none)" in page.js("return document.getElementById('held').textContent")
    page.press("n")
    assert "no extreme token" in page.js("return document.getElementById('readout').textContent")
    page.press("t")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    page.press("n", "r", "g", "o", "c")
    assert page.js("return document.getElementById('responses').textContent") == "This record holds no tokens."
    assert page.errors() == []


def test_a_file_that_is_not_complete(page, run, tmp_path):
    write_token_page(run, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    (tmp_path / "page.html").write_text(text[: text.index('id="block-1"')])
    page.open(tmp_path / "page.html")
    page.press("g")
    time.sleep(0.2)
    assert "is the file complete" in page.js("return document.getElementById('responses').textContent")
    page.errors()  # the browser's, which say the same


def test_first_paint_at_12_responses_of_4096_tokens(page, tmp_path, record_property):
    """Under a second, with tokens on the screen. What follows is only logged: it depends on the machine's load."""
    rng = np.random.default_rng(3)
    write_record(tmp_path / "tokens" / "step_000050.parquet", rng, {group: [4096] * 12 for group in range(3)})
    write_token_page(tmp_path, tmp_path / "page.html")
    # Asks at every frame whether a token stands where the first response begins.
    watch = """
        (function look() {
          const box = document.querySelector('.tokens span')?.getBoundingClientRects?.() ??
            document.querySelector('.tokens span')?.getClientRects()[0];
          if (box?.height && document.elementFromPoint(box.left + 1, box.top + box.height / 2)?.closest('.tokens'))
            requestAnimationFrame(() => setTimeout(() => { window.tokensSeen = performance.now(); }));
          else requestAnimationFrame(look);
        })();"""
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
    paints, seen = [], []
    for _ in range(3):  # the best of three: something else may take the machine for a moment
        page.open(tmp_path / "page.html")
        paints.append(page.js("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        seen.append(page.js("return window.tokensSeen"))
    page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert sum(map(len, page.texts())) == 12 * 4096

    def until_painted(action: str) -> float:
        time.sleep(0.3)
        return page.driver.execute_async_script(
            f"const done = arguments[0], start = performance.now(); {action};"
            "requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"
        )

    def key(name: str) -> str:
        return f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{name}', bubbles: true}}))"

    took = {
        name: [until_painted(key(letter)) for _ in range(3)]
        for name, letter in {
            "colour": "c",
            "next extreme": "n",
            "next response": "r",
            "order": "o",
            "next prompt": "g",
        }.items()
    }
    for name, times in {"first paint": paints, "tokens on the screen": seen, **took}.items():
        print(f"{name}: {', '.join(f'{milliseconds:.0f}' for milliseconds in times)} ms")
        record_property(name, times)
    assert min(paints) < 1000
    assert min(seen) < 1000


def test_a_window_of_400_pixels(page, run, tmp_path):
    write_token_page(run, tmp_path / "page.html")
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(tmp_path / "page.html")
        assert page.js("return document.documentElement.scrollWidth") == 400
        for _ in range(3):
            page.press("n")
            assert page.in_view(), "not hidden by the readout"
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
