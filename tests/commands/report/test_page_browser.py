"""The page in a real browser: search, folding, no error, no request, hostile text as text, and what readers need."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_content import make_samples

import cli
from doppel.grammar import generate

pytestmark = pytest.mark.browser
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
ARGUMENTS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install 'doppel[browser]'")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ARGUMENTS.split():
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    lines = [{"utterance": t.utterance, "parse": t.parse} for t in generate(300, seed=6, skew=1.5)]
    lines += [{"utterance": HOSTILE, "parse": '(Yield (Tell (?= "<b>bold</b>")))'}] * 9
    supported = ["!AttendeeListHasRecipient", "!UpdateCommitEventWrapper", "!Tell"]
    more = {"supported": supported, "reference": "embedded:test?num=100&seed=9"}
    run = make_samples(tmp_path_factory.mktemp("runs") / "run", lines, **more)
    (run / "two_stage" / "evaluation.json").write_text('{"mauve_own_base": 0.8, "human_mauve_own_base": 0.9}')
    assert cli.main(["report", str(run)]) == 0
    return (run / "report.html").as_uri()


@pytest.fixture(params=["light", "dark"])
def opened(browser: Any, address: str, request: pytest.FixtureRequest) -> Any:
    """The page in one of its two looks, at the width of a desktop."""
    show(browser, address, 1200, request.param)
    return browser


def show(browser: Any, address: str, width: int, look: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": look}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(address)


def test_it_asks_no_network_and_reports_no_error(opened: Any, address: str) -> None:
    opened.execute_script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [address]
    assert opened.get_log("browser") == []


def test_hostile_text_is_shown_and_not_run(opened: Any) -> None:
    assert opened.title == "run: what people ask for"
    words = opened.execute_script("return document.querySelector('.utterances').textContent")
    assert HOSTILE in words and "<b>bold</b>" in words
    assert opened.execute_script("return document.images.length + document.querySelectorAll('b').length") == 0


def test_search_finds_words_in_utterances_and_trees(opened: Any) -> None:
    def search(words: str) -> list[str]:
        opened.execute_script(
            "const box = document.getElementById('search'); box.value = arguments[0];"
            "box.dispatchEvent(new Event('input'));",
            words,
        )
        shown = "[...document.querySelectorAll('.utterances > li')].filter((item) => item.checkVisibility())"
        found: list[str] = opened.execute_script(f"return {shown}.map((item) => item.textContent.toLowerCase())")
        return found

    assert opened.find_element("id", "search").is_displayed() and len(search("")) == 309
    found = search("Tell  SCRIPT")
    assert len(found) == 9 and all("tell" in text and "script" in text for text in found)
    assert opened.find_element("id", "found").text == "9 of 309 utterances"
    assert search("no such words at all") == []


def test_folds_open_and_close_by_click_and_key(opened: Any) -> None:
    (fold, *_) = opened.find_elements("css selector", ".utterances details")
    tree, summary = fold.find_element("tag name", "code"), fold.find_element("tag name", "summary")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", summary)
    assert not tree.is_displayed()
    summary.click()
    assert tree.is_displayed() and tree.text.startswith("(")
    summary.send_keys("\n")
    assert not tree.is_displayed()
    branch = opened.find_element("css selector", ".tree details")
    was = branch.get_attribute("open")
    branch.find_element("tag name", "summary").click()
    assert branch.get_attribute("open") != was


#: Text that stands out too little from what is behind it: rule 1.4.3 of WCAG, on computed styles.
_FAINT = """
const parse = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (c) => {
  const even = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = c.slice(0, 3).map((v) => even(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || !element.checkVisibility() || element.closest("script, title")) continue;
  const style = getComputedStyle(element);
  const colour = parse(element.closest("svg") ? style.fill : style.color);
  const [a, b] = [light(colour), light(behind(element))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${node.data.trim()} ${style.color}`);
}
return found;
"""
#: Controls without a name, cells without headers, headings out of order, references to nothing.
_UNNAMED = """
const bad = [];
const named = (e) => e.textContent.trim() || e.getAttribute("aria-label") || (e.labels && e.labels.length);
for (const e of document.querySelectorAll("a, button, input, summary, [role=img], [role=region], nav")) {
  if (!named(e)) bad.push(e.outerHTML.slice(0, 80));
}
for (const table of document.querySelectorAll("table")) {
  if (!table.querySelector("caption") || !table.querySelector("thead th[scope=col]")) bad.push("table");
}
let level = 0;
for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
  const own = Number(heading.tagName[1]);
  if (own > level + 1) bad.push(heading.textContent);
  level = own;
}
for (const e of document.querySelectorAll("[aria-labelledby]")) {
  if (!document.getElementById(e.getAttribute("aria-labelledby"))) bad.push(e.id);
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
if (new Set(ids).size < ids.length) bad.push("an id twice");
for (const e of document.querySelectorAll("body > *")) {
  if (!e.matches("header, nav, main, footer, script, .skip")) bad.push(e.tagName);
}
return bad;
"""


def test_what_readers_of_all_kinds_need_is_there(opened: Any) -> None:
    opened.execute_script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert opened.execute_script(_FAINT) == []
    assert opened.execute_script(_UNNAMED) == []
    roles = opened.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    kinds = {node["role"]["value"] for node in roles if not node["ignored"]}
    assert {"banner", "main", "navigation", "contentinfo", "table", "columnheader", "rowheader", "searchbox"} <= kinds


@pytest.mark.parametrize("width", [320, 390])
def test_it_fits_a_phone(browser: Any, address: str, width: int) -> None:
    show(browser, address, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.find_element("css selector", ".asked tbody tr").is_displayed()
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    assert "rowheader" in {node["role"]["value"] for node in nodes if not node["ignored"]}, "the table stays a table"


def test_it_is_read_without_script(browser: Any, address: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, address, 1200)
        assert "What people ask for most" in browser.find_element("tag name", "h1").text
        fold = browser.find_element("css selector", ".utterances details")
        fold.find_element("tag name", "summary").click()
        assert fold.get_attribute("open")
        assert not browser.find_element("id", "search").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_all_of_it_is_printed(browser: Any, address: str, tmp_path: Path) -> None:
    import base64

    show(browser, address, 1200)
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") > 2
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert not browser.find_element("id", "search").is_displayed()
    height = browser.execute_script(
        "const l = document.querySelector('.utterances'); return l.scrollHeight - l.clientHeight"
    )
    assert height <= 1, "no utterance is cut off by the box that scrolls on a screen"
