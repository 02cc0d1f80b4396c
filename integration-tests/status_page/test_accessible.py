"""By axe's rules (WCAG 2.2 AA, contrast included), by keyboard, and on a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from harness.recorded_daemon import RecordedDaemon, at, epoch, letter, pipeline
from playwright.sync_api import expect
from status_page.conftest import Open

pytestmark = pytest.mark.slow  # together, a minute of a browser's time

PHONE = {"width": 360, "height": 740}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
ADDRESSES = ["", "#/pipelines/orders", "#/pipelines/orders/epochs/60", "#/pipelines/orders/dead-letters"]


@pytest.fixture
def busy(daemon: RecordedDaemon) -> RecordedDaemon:
    """All states at once, and an error."""
    error = {"code": "sink-unreachable", "message": "Postgres does not answer.", "at": None}
    for state in ("starting", "paused", "waiting", "stopping", "stopped", "finished", "failed", "fenced"):
        more = {"error": error} if state in ("waiting", "failed", "fenced") else {}
        daemon.pipelines[state] = pipeline(state, state, in_doubt=2, **more)
    daemon.pipelines["orders"].update(error=error, in_doubt=1, oldest_prepared_s=90)
    states = ["open", "decided", "damaged", "given_up"]
    sent = {"state": "sent", "at": at(5), "offset": 150_099}
    doubt = {"state": "sending", "at": at(5), "offset": None}
    daemon.letters = {
        "letters": [letter(1), letter(2, sent=sent, can_send=False), letter(3, sent=doubt)],
        "elsewhere": ["audit"],
    }
    daemon.epochs["orders"][:4] = [epoch(60 - at, state) for at, state in enumerate(states)]
    daemon.epochs["orders"][0] |= {"error": "damaged: a transaction is gone", "manifest": []}
    return daemon


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.usefixtures("busy")
def test_axe_finds_nothing(opened: Open, address: str, scheme: str) -> None:
    page = opened(address, color_scheme=scheme)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("img")).to_have_count(3 if address == ADDRESSES[1] else 0)
    for content in page.get_by_text("Content", exact=True).all():
        content.click()
    page.clock.resume()  # axe waits for timers, too
    found = Axe().run(page, options=RULES)
    assert found.response["passes"], "axe has looked at nothing"
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_phone_needs_no_sideways_scrolling_and_cells_stay_cells(
    busy: RecordedDaemon, opened: Open, address: str
) -> None:
    busy.pipelines["a" * 120] = pipeline("a" * 120)
    page = opened(address, viewport=PHONE, has_touch=True)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    if address in ADDRESSES[1:3]:
        expect(page.get_by_role("table").first.get_by_role("cell").first).to_be_visible()
    small = page.get_by_role("button").evaluate_all("all => all.filter(one => one.offsetHeight < 44).length")
    assert small == 0


@pytest.mark.usefixtures("busy")
def test_the_tab_key_reaches_everything_in_the_order_of_the_page(opened: Open) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("button", name="Older epochs")).to_be_visible()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")
        )
        if reached[-1] == "Older epochs":
            break
    assert reached[:6] == ["Skip to the content", "onefold", "All pipelines", "Pause", "Restart", "Stop"]
    assert reached[-4:] == ["Epoch 51", "Epoch 50", "Epoch 49", "Older epochs"]
    focusable = page.evaluate("document.querySelectorAll('a[href], main button, main .graph').length")
    assert len(reached) == focusable


def test_the_skip_link_leads_past_the_top(opened: Open) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    assert page.url.endswith("#/pipelines/orders")
