"""The page of a sweep in a real browser: five thousand cells, filters, order, details."""

from __future__ import annotations

import os
import shutil

import pytest

import torchparity
from torchparity.records import SweepCell, SweepHistory, SweepSummary
from torchparity.report.sweep import command_of, write_sweep

playwright = pytest.importorskip("playwright.sync_api", reason="the extra dev installs playwright")
BROWSER = os.environ.get("TORCHPARITY_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
FILTER = """([place, value]) => {
    const field = document.querySelector(place), before = performance.now();
    field.value = value;
    field.dispatchEvent(new Event("input"));
    document.body.offsetHeight;
    return performance.now() - before;
}"""


def summary(rows=625):
    cells = []
    for number in range(rows):
        for options in (f"dtype={dtype}{train}" for dtype in ("a", "b", "c", "d") for train in ("", " train")):
            wrong = number % 17 == 3 and options == "dtype=a"
            cells.append(
                SweepCell(
                    id=len(cells) + 1, title=f"zoo.py:m{number}", target=f"zoo.py:m{number}", options=options,
                    status="differs" if wrong else "same", kind="value" * wrong, baseline="new" * wrong,
                    severity="wrong" if wrong else "none", reason="it is so", seconds=float(number % 7),
                    labels=(f"l{number % 5}",), history=("same", "differs"), given={"train": "train" in options},
                )
            )  # fmt: skip
    return SweepSummary(
        suite="suite.toml", began="2026-11-17", ended="", cells=tuple(cells), environments=({"torch": "2.13"},),
        statuses={"same": 1}, history=(SweepHistory(began="2026-11-16", statuses={"same": 3, "differs": 1}),),
    )  # fmt: skip


@pytest.mark.skipif(BROWSER is None, reason="no chromium here; `make test` installs it where it may")
@pytest.mark.slow
def test_five_thousand_cells_are_searched_ordered_and_opened(tmp_path):
    place = write_sweep(tmp_path, summary())
    told = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.goto(place.as_uri())
        assert page.inner_text("#count") == "625 of 625 models"
        assert len(page.query_selector_all("#matrix td button")) == 5000
        # So much would be an order of magnitude too slow, on any machine.
        assert page.evaluate(FILTER, ["#by-status", "differs"]) < 1000
        assert page.inner_text("#count") == "37 of 625 models"
        page.evaluate(FILTER, ["#by-label", "l3"])
        assert page.inner_text("#count") == "8 of 625 models"
        page.evaluate(FILTER, ["#by-label", ""])
        page.evaluate(FILTER, ["#search", "m20"])
        assert page.inner_text("#count") == "2 of 625 models", "m20, and m207"
        page.evaluate(FILTER, ["#search", ""])
        page.evaluate(FILTER, ["#by-status", ""])
        page.evaluate(FILTER, ["#order", "worst"])
        assert page.inner_text("#matrix tbody tr:first-child th") == "zoo.py:m3"
        page.click("#matrix tbody tr:first-child td button")
        detail = page.inner_text("dialog[open]")
        assert "zoo.py:m3: differs" in detail
        assert "torchparity check zoo.py:m3" in detail
        assert page.get_attribute("dialog .spark", "aria-label").endswith("sd")
        browser.close()
    assert told == []


def test_what_checks_a_cell_again_can_be_run(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef make(width):\n    return torch.nn.Linear(width, 2), (torch.ones(1, width),)\n"
    )
    monkeypatch.chdir(tmp_path)
    cell = SweepCell(
        id=1, title="", target="own.py:make", options="", given={"dtype": "float64", "batch": 3, "backend": "eager"},
        parameters={"width": 4},
    )  # fmt: skip
    verdict = eval(command_of(cell), {"torchparity": torchparity})
    assert verdict.status is torchparity.Status.SAME
    assert [(leaf.dtype, leaf.shape) for leaf in verdict.leaves if leaf.role == "output"] == [("float64", (3, 2))]
    plain = SweepCell(id=1, title="", target="a.py:b", options="", given={"train": True, "no_grad": False, "mode": "x"})
    assert command_of(plain) == "torchparity check a.py:b --train --mode x"
