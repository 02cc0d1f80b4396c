"""A report in a headless Chromium, as a file: it asks for nothing, runs nothing, and reads well everywhere.
docs/verify.md shows it; `make docs` takes the pictures anew: look at them then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from harness.browser import chromium
from harness.reports import BEGIN_S, ODD, an_epoch, report
from playwright.sync_api import Browser, Page, expect

from onefold.core.invariants import Comparison
from onefold.report.page import Report, page
from onefold.report.timeline import Incident

pytestmark = pytest.mark.slow  # together, a minute of a browser's time

Show = Callable[..., Page]
DOCS = Path(__file__).parents[2] / "docs"
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WORST = Comparison(10**15, 10**15, 1, 1, 1, 1, 1, 1, ODD, dict.fromkeys(ODD, ODD), {odd: {odd: 1} for odd in ODD})
REPORTS = {
    "plain": report(),
    "many": report(50_000),
    "none": report(0, comparisons={}, invariants={}),
    "odd": report(
        title=ODD[0] * 5,
        comparisons=dict.fromkeys(ODD, WORST),
        invariants=dict.fromkeys(ODD, ODD),
        epochs=[an_epoch(1), an_epoch(2, state="damaged", error=ODD[3]), an_epoch(3, generation=9, at_s=1e6)],
        incidents=[Incident("faults", BEGIN_S, odd) for odd in ODD],
        tables={odd: [{"a": odd, "b": odd}] for odd in ODD},
        notes=ODD,
    ),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens a report's file in a browser that has no script of its own to show it. Anything that it asks for, or that
    the page's policy forbids it, fails the test."""
    contexts, asked, said = [], [], []

    def show(told: Report, **settings: Any) -> Page:
        file = tmp_path / "report.html"
        file.write_text(page(told), encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **settings}))
        opened = contexts[-1].new_page()
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(file.as_uri())
        assert asked.pop() == file.as_uri()
        return opened

    yield show
    for context in contexts:
        context.close()
    assert asked == []
    assert said == []


@pytest.mark.parametrize("name", REPORTS)
def test_without_scripts_everything_is_there_and_nothing_is_wider_than_the_page(shown: Show, name: str) -> None:
    for viewport in (WIDE, PHONE):
        opened = shown(REPORTS[name], viewport=viewport, java_script_enabled=False)
        expect(opened.get_by_role("heading", level=1)).to_be_visible()
        expect(opened.get_by_role("heading", name="Epochs")).to_be_visible()
        expect(opened.get_by_role("img")).to_have_count({"plain": 5, "many": 5, "none": 0, "odd": 6}[name])
        for words in opened.get_by_text("The same in words").all():
            words.click()
            expect(
                opened.get_by_role("columnheader", name="positions").or_(opened.locator("[data-label=positions]")).first
            ).to_be_attached()
        opened.screenshot()  # it draws
        assert opened.locator("html").bounding_box()["width"] <= viewport["width"]  # type: ignore[index]
        assert opened.locator("main").evaluate("main => main.scrollWidth <= main.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", REPORTS)
def test_axe_finds_nothing(shown: Show, name: str, scheme: str) -> None:
    opened = shown(REPORTS[name], color_scheme=scheme, bypass_csp=True)
    found = Axe().run(opened, options=RULES)
    assert found.response["passes"], "axe has looked at nothing"
    assert found.violations_count == 0, found.generate_report()


def test_no_text_runs_or_becomes_an_element(shown: Show) -> None:
    opened = shown(REPORTS["odd"])
    assert opened.title() == ODD[0] * 5
    assert opened.evaluate("document.querySelectorAll('script, img, a').length") == 0
    expect(opened.get_by_text("a\\x00b\\ud800c\\udfff\\u202egnp.exe\\u2028").first).to_be_visible()


def test_a_bar_stands_where_its_epoch_is_and_keeps_its_words_legible_on_a_phone(shown: Show) -> None:
    opened = shown(report(60), viewport=PHONE)
    bars = opened.locator("svg").first.locator("rect")
    expect(bars).to_have_count(60)
    first, last = bars.first.bounding_box(), bars.last.bounding_box()
    assert first is not None and last is not None and first["x"] < 60 and last["x"] > 300
    assert opened.locator(".lane p").first.evaluate("p => parseFloat(getComputedStyle(p).fontSize)") >= 14


def test_on_paper_it_is_light_and_has_the_words_of_all_epochs(shown: Show) -> None:
    opened = shown(report(60), color_scheme="dark")
    expect(opened.get_by_text("59", exact=True)).to_be_hidden()
    opened.emulate_media(media="print")
    expect(opened.get_by_text("59", exact=True)).to_be_visible()
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(244, 246, 249)"
    assert len(opened.pdf()) > 10_000


PICTURES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 960, "height": 1340}},
    "dark": {"viewport": {"width": 960, "height": 1340}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 2400}},
}


@pytest.mark.docs
@pytest.mark.parametrize("name", PICTURES)
def test_the_page_has_its_pictures_in_the_docs(shown: Show, name: str) -> None:
    opened = shown(report(60), **PICTURES[name])
    picture = DOCS / "images" / f"report-{name}.png"
    if os.environ.get("ONEFOLD_RENEW_DOCS"):
        opened.screenshot(path=picture, full_page=True)
    assert picture.is_file()
    assert f"(images/{picture.name})" in (DOCS / "verify.md").read_text()
