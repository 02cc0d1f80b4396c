"""The status page in a headless Chromium, whose clock stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from harness.browser import chromium
from harness.recorded_daemon import NOW, RecordedDaemon
from playwright.sync_api import Browser, Page, expect

Open = Callable[..., Page]
PATIENCE_MS = 30_000  # on a machine that does much else
expect.set_options(timeout=PATIENCE_MS)

LOOK_MS = 2_100  # more than the page waits from look to look
COUNTS_WAITS = """
const wait = window.setTimeout;
window.waits = 0;
window.setTimeout = (act, ms) => {
  window.waits += 1;
  return wait(() => { window.waits -= 1; act(); }, ms);
};
"""


def look_again(page: Page) -> None:
    """The page looks once more. While it is at a look still, there is no timer that its clock could bring to an end."""
    page.wait_for_function("window.waits > 0")
    page.clock.run_for(LOOK_MS)


@pytest.fixture(scope="module")  # of a module, as its event loop is in the way of other modules' asyncio.run
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def daemon() -> Iterator[RecordedDaemon]:
    daemon = RecordedDaemon()
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def opened(browser: Browser, daemon: RecordedDaemon) -> Iterator[Open]:
    """Opens the page: `opened("#/pipelines/orders", color_scheme="dark")`. An error in its scripts fails the test."""
    contexts, errors = [], []

    def page_at(address: str = "", is_logged_in: bool = True, **more: Any) -> Page:
        settings = {"viewport": {"width": 1200, "height": 900}, "timezone_id": "UTC", "locale": "en-GB", **more}
        contexts.append(browser.new_context(**settings))
        contexts[-1].set_default_timeout(PATIENCE_MS)
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
        page.clock.install(time=NOW - timedelta(seconds=1))
        page.clock.pause_at(NOW)
        page.add_init_script(COUNTS_WAITS)
        if is_logged_in:
            page.add_init_script(f"localStorage.setItem('onefold-key', '{daemon.token}')")
        page.goto(f"{daemon.url}/{address}")
        return page

    yield page_at
    for context in contexts:
        context.close()
    assert errors == []
