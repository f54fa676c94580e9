"""The page in a real headless browser, opened from a file: it works, asks for nothing, and no name does harm."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.report import hunts
from tests.report.samples import diagnosis, hostile

from torchparity.report.hunt import write_hunt
from torchparity.report.page import write_index, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="the extra dev installs playwright")
BROWSER = os.environ.get("TORCHPARITY_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium here; `make test` installs it where it may")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WIDTHS = [(1280, "light"), (768, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Open a page from a file; afterwards nothing may have been complained about, and nothing asked for."""
    told, contexts = [], []

    def open_page(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"error: {error}"))
        page.on("request", lambda request: told.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    return write_run(diagnosis(count=500), tmp_path_factory.mktemp("run"))


def test_a_node_can_be_clicked(visit, run_page):
    page = visit(run_page)
    page.locator("#graph-svg .node.culprit").click()
    assert "(the culprit)" in page.locator("#node-panel h3").inner_text()
    panel = page.locator("#node-panel").inner_text()
    assert "steps = x // 0.1" in panel
    assert "500 value" in panel
    page.get_by_role("button", name="Whole").click()
    page.locator('.node[data-node="7"]').click()
    assert (
        page.locator("#node-panel h3").inner_text()
        == page.locator('.node[data-node="7"]').get_attribute("aria-label").split(",")[0]
    )


def test_the_graph_zooms_and_is_dragged(visit, run_page):
    page = visit(run_page)
    graph = page.locator("#graph-svg")

    def view():
        return [float(number) for number in graph.get_attribute("viewBox").split()]

    close = view()
    page.get_by_role("button", name="Whole").click()
    whole = view()
    assert whole[2] > 2 * close[2]
    page.get_by_role("button", name="Zoom in").click()
    assert view()[2] == pytest.approx(0.8 * whole[2])
    before = view()
    graph.scroll_into_view_if_needed()
    box = graph.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 240, steps=4)
    page.mouse.up()
    after = view()
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert after[2] == before[2]


def test_the_keyboard_is_enough(visit, run_page):
    page = visit(run_page)
    page.locator("#graph-svg").focus()
    page.keyboard.press("Enter")
    first = page.locator("#node-panel h3").inner_text()
    page.keyboard.press("ArrowUp")
    above = page.locator("#node-panel h3").inner_text()
    assert above != first
    page.keyboard.press("ArrowDown")
    assert page.locator("#node-panel h3").inner_text() == first
    before = page.locator("#graph-svg").get_attribute("viewBox")
    page.keyboard.press("-")
    assert page.locator("#graph-svg").get_attribute("viewBox") != before


def test_a_node_is_found_by_its_name(visit, run_page):
    page = visit(run_page)
    page.locator("#graph-find").fill("add_42")
    assert page.locator("#node-panel h3").inner_text() == "add_42"


def test_the_table_sorts_and_filters(visit, run_page):
    page = visit(run_page)

    def names():
        return page.locator("#leaf-table tbody tr:visible th").all_inner_texts()

    assert names() == ["output[0]", "output[1]", "output[2]"]
    score = page.get_by_role("button", name="score")
    score.click()
    assert names() == ["output[1]", "output[0]", "output[2]"]
    assert page.locator("#leaf-table th[aria-sort]").get_attribute("aria-sort") == "descending"
    score.click()
    assert names() == ["output[2]", "output[0]", "output[1]"]
    page.locator('[data-filter="leaf-table"]').fill("output[1")
    assert names() == ["output[1]"]


@pytest.mark.parametrize("allowed", [True, False], ids=["clipboard", "without"])
def test_the_copy_button_copies(visit, run_page, allowed):
    page = visit(run_page)
    if allowed:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("delete Navigator.prototype.clipboard")
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    if allowed:
        assert page.evaluate("navigator.clipboard.readText()") == diagnosis().smallest.script


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
def test_it_fits_every_screen(visit, run_page, width, scheme):
    page = visit(run_page, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(ink, paper) > 7


def contrast(one, other):
    """The ratio of two colours as the accessibility guidelines define it."""

    def light(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_control_has_a_name_and_every_picture_words(visit, run_page):
    page = visit(run_page)
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, input, select, svg[role=img], [role=button], [role=region]')].filter(
            e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    names = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(names) == len(set(names))


def test_it_prints(visit, run_page):
    page = visit(run_page)
    page.emulate_media(media="print")
    assert page.locator(".copy").is_hidden()
    assert page.locator("#script-text").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_hostile_names_do_no_harm(visit, tmp_path):
    page = visit(write_run(hostile(), tmp_path), viewport={"width": 390, "height": 800})
    page.locator("#graph-svg .node.culprit").click()
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0
    assert "<script>" in page.locator("#node-panel").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_it_works_without_its_script(visit, run_page):
    page = visit(run_page, java_script_enabled=False)
    assert page.locator("#script-text").is_visible()
    assert page.locator("#graph-svg .node").count() == 500


def test_an_index_is_filtered_sorted_and_followed(visit, tmp_path):
    for name, subject in (("a", "zebra.py:make"), ("b", "ant.py:make")):
        write_run(diagnosis(subject=subject), tmp_path / name)
    page = visit(write_index(tmp_path))
    page.get_by_role("button", name="model").click()
    assert page.locator("tbody th").all_inner_texts() == ["ant.py:make", "zebra.py:make"]
    page.locator('[data-filter="run-table"]').fill("zebra")
    assert page.locator("tbody tr:visible").count() == 1
    page.locator("[data-filter-status]").select_option("same")
    assert page.locator("tbody tr:visible").count() == 0
    assert page.locator("[data-count]").inner_text() == "0 of 2"


# --- a hunt --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hunt_page(tmp_path_factory):
    return write_hunt(tmp_path_factory.mktemp("hunt"), hunts.hunt())


ZEBRA, ANT, UNFOLD = "codegen-zebra-raises", "passes-ant-stride", "aot-autograd-add-unfold-value"


def shown_bugs(page):
    return page.locator("#bug-table tbody:visible .name").all_inner_texts()


def test_bugs_are_filtered_by_words_and_by_what_they_are(visit, hunt_page):
    page = visit(hunt_page)
    assert shown_bugs(page) == [ZEBRA, ANT, UNFOLD]
    page.locator('[data-filter="bug-table"]').fill("ZEBRA")
    assert shown_bugs(page) == [ZEBRA]
    page.locator('[data-filter="bug-table"]').fill("")
    for label, value, expected in (
        ("Severity", "layout", [ANT]),
        ("Kind", "raises", [ZEBRA]),
        ("Stage", "aot_autograd", [UNFOLD]),
        ("Upstream", "known", [UNFOLD]),
    ):
        choice = page.locator("#bugs").get_by_label(label)
        choice.select_option(value)
        assert shown_bugs(page) == expected
        assert page.locator('[data-count="bug-table"]').inner_text() == "1 of 3"
        choice.select_option("")
    page.locator("#bugs").get_by_label("Kind").select_option("raises")
    page.locator("#bugs").get_by_label("Upstream").select_option("known")
    assert shown_bugs(page) == []


def test_bugs_are_sorted_with_what_they_open(visit, hunt_page):
    page = visit(hunt_page)
    page.get_by_role("button", name=ANT).click()
    heads = page.locator("#bug-table thead")
    heads.get_by_role("button", name="finds").click()
    assert shown_bugs(page) == [ANT, UNFOLD, ZEBRA]
    heads.get_by_role("button", name="severity").click()
    assert shown_bugs(page) == [ZEBRA, UNFOLD, ANT]
    heads.get_by_role("button", name="bug").click()
    assert shown_bugs(page) == [UNFOLD, ZEBRA, ANT]
    opened = page.locator("#bug-table .more:visible")
    assert opened.count() == 1
    assert opened.evaluate("row => row.previousElementSibling.querySelector('.name').textContent") == ANT


def test_a_bug_opens_by_keyboard_by_click_and_by_its_address(visit, hunt_page):
    page = visit(hunt_page)
    assert page.locator("#bug-table .more:visible").count() == 0
    button = page.get_by_role("button", name=ZEBRA)
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    assert page.locator("#script-1").inner_text() == hunts.SCRIPT
    page.keyboard.press("Space")
    assert page.locator("#script-1").is_hidden()
    page.locator("#bug-2 td.stage").click()
    assert "No script of torch alone" in page.locator("#bug-2-more").inner_text()
    page.locator("#find-table").get_by_role("link", name=UNFOLD).click()
    page.locator("#bug-3-more").wait_for()
    page.get_by_role("button", name="Open all").click()
    assert page.locator("#bug-table .more:visible").count() == 3
    page.get_by_role("button", name="Close all").click()
    assert page.locator("#bug-table .more:visible").count() == 0


def test_the_script_of_a_bug_is_copied(visit, hunt_page):
    page = visit(hunt_page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name=ZEBRA).click()
    page.locator('[data-copy="script-1"]').click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == hunts.SCRIPT


def test_forms_are_filtered_and_sorted(visit, hunt_page):
    page = visit(hunt_page)

    def names():
        return page.locator("#form-table tbody tr:visible th").all_inner_texts()

    page.locator("#form-table thead").get_by_role("button", name="finds of 100").click()
    assert names() == ["unfold", "x[index]", "conv2d"]
    page.get_by_label("Show").select_option("never")
    assert names() == ["conv2d"]


@pytest.mark.parametrize(("width", "scheme"), WIDTHS)
@pytest.mark.parametrize("made", [hunts.large, hunts.hostile])
def test_a_hunt_fits_every_screen_and_does_no_harm(visit, tmp_path, made, width, scheme):
    page = visit(write_hunt(tmp_path, made()), viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.get_by_role("button", name="Open all").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0
    faint = page.evaluate(
        """[...document.querySelectorAll('.severity, .soft, .figures dt, .alarm, .badge, .facts dt')].map(
            e => getComputedStyle(e).color)"""
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert min(contrast(ink, paper) for ink in set(faint)) > 4.5


def test_a_hunt_names_every_control_and_numbers_nothing_twice(visit, hunt_page):
    test_every_control_has_a_name_and_every_picture_words(visit, hunt_page)


def test_a_hunt_is_read_without_its_script_and_on_paper(visit, hunt_page):
    page = visit(hunt_page, java_script_enabled=False)
    assert page.locator("#script-1").is_visible()
    assert page.locator("#bug-table .more:visible").count() == 3
    assert page.get_by_role("button", name="Open all").is_hidden()
    page = visit(hunt_page)
    page.emulate_media(media="print")
    assert page.locator("#script-1").is_visible()
    assert page.locator("#bugs .tools").is_hidden()
