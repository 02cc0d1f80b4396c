"""docs/status-page.md shows the page in each state. `make docs` takes the pictures anew; look at them then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness.recorded_daemon import RecordedDaemon, at, epoch, letter, pipeline
from playwright.sync_api import expect
from status_page.conftest import Open

pytestmark = pytest.mark.slow  # together, a minute of a browser's time

DOCS = Path(__file__).parents[2] / "docs"
PHONE = {"width": 360, "height": 740}
SCREEN = {"width": 960, "height": 560}
DOWN = {
    "code": "postgres-unreachable",
    "message": "Postgres at db.example:5432 does not accept connections: the server is starting up. Nothing is lost.",
    "at": at(8),
}
BAD = {
    "code": "record-unreadable",
    "message": "record orders/2@150022 has no field 'amount', which the schema asks for. Correct the schema; or say"
    " what is to become of such records, with on_error='dead_letter' or on_error='skip'",
    "at": at(42),
}
TAKEN = {
    "code": "fenced",
    "message": "generation 3 of pipeline 'orders' was taken over by generation 4: another process runs it now",
    "at": at(42),
}
ROUTE = "#/pipelines/orders"
PICTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "overview": ("", {}, {"viewport": {"height": 780}}),
    "running": (ROUTE, {}, {"viewport": {"height": 3250}}),
    "paused": (ROUTE, {"state": "paused", "actions": ["resume", "restart", "stop"]}, {}),
    "waiting": (
        ROUTE,
        {"state": "waiting", "actions": ["restart", "stop"], "error": DOWN, "next_start_at": at(-22)},
        {},
    ),
    "failed": (ROUTE, {"state": "failed", "actions": ["restart"], "error": BAD, "in_doubt": 0}, {}),
    "fenced": (ROUTE, {"state": "fenced", "actions": [], "error": TAKEN, "behind": None, "lag": None}, {}),
    "stopped": (ROUTE, {"state": "stopped", "actions": ["restart"], "behind": None, "lag": None}, {}),
    "in-doubt": (ROUTE, {"in_doubt": 4, "oldest_prepared_s": 95.0, "progress_at": at(95)}, {}),
    "not-reachable": (ROUTE, {}, {}),
    "epoch": (f"{ROUTE}/epochs/60", {}, {"viewport": {"height": 1080}}),
    "dead-letters": (f"{ROUTE}/dead-letters", {}, {"viewport": {"height": 1080}}),
    "dark": (ROUTE, {}, {"color_scheme": "dark", "viewport": {"height": 1000}}),
    "phone": (ROUTE, {}, {"viewport": PHONE, "has_touch": True}),
    "phone-dark": ("", {}, {"viewport": PHONE, "color_scheme": "dark", "has_touch": True}),
}


@pytest.mark.docs
@pytest.mark.parametrize("name", PICTURES)
def test_each_state_has_its_picture_in_the_docs(daemon: RecordedDaemon, opened: Open, name: str) -> None:
    address, changes, settings = PICTURES[name]
    daemon.pipelines["orders"].update(changes)
    if not address:
        daemon.pipelines["clicks"] = pipeline("clicks", "waiting", error=DOWN, next_start_at=at(-22), in_doubt=1)
        daemon.pipelines["profiles"] = pipeline("profiles", "paused", dead_letters=None, takes_dead_letters=False)
    sent = {"state": "sent", "at": at(5), "offset": 150_099}
    daemon.letters["letters"] = [letter(150_020), letter(149_120, epoch=57, sent=sent, can_send=False)]
    if name == "in-doubt":
        daemon.epochs["orders"][0] = epoch(60, "decided")
    page = opened(address, viewport=SCREEN | settings.pop("viewport", {}), **settings)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    if name == "not-reachable":
        daemon.stop()
        page.clock.run_for(2_000)
        page.clock.run_for(40_000)
        expect(page.get_by_text("not reachable")).to_be_visible()
    if name == "dead-letters":
        page.get_by_text("Content", exact=True).first.click()
    state = changes.get("state")
    if state:
        expect(page.locator("h1 + .badge")).to_have_text(state)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    picture = DOCS / "images" / f"status-page-{name}.png"
    if os.environ.get("ONEFOLD_RENEW_DOCS"):
        picture.parent.mkdir(exist_ok=True)
        page.screenshot(path=picture)
    assert picture.is_file()
    assert f"(images/{picture.name})" in (DOCS / "status-page.md").read_text()
