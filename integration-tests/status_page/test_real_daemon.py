"""The page of `onefold run` on real servers: what it shows is so, and its buttons do what they say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.daemons import ONEFOLD, ORDERS_FILE, daemons
from harness.kafka.topics import in_order
from harness.support import wait_until
from playwright.sync_api import Browser, Page, expect

from onefold.core.values.plain import shown_url

pytestmark = [pytest.mark.servers, pytest.mark.slow]
START_MS = 180_000


@pytest.fixture
def topic(kafka_server: Any, kafka_topic: Callable[..., str]) -> str:
    """300 orders, and three records that are none."""
    topic = kafka_topic(partitions=2)
    producer = in_order(kafka_server.bootstrap_servers)
    for number in range(300):
        producer.produce(topic, b'{"id":%d,"n":%d}' % (number, number % 7), partition=number % 2)
    for value in (b"<script>window.struck = 1</script>", b"\xff\x00", b'{"id": "seven"}'):
        producer.produce(topic, value, key=b"bad", partition=1)
    assert producer.flush(30) == 0
    return topic


@pytest.fixture(params=["engine", "spark"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(kafka_server: Any, topic: str, postgres_url: str, runtime: str, tmp_path: Path) -> Iterator[str]:
    """The link to the page of a daemon of that pipeline."""
    file = tmp_path / "orders.toml"
    told = {"runtime": runtime, "topic": topic, "servers": kafka_server.bootstrap_servers, "url": postgres_url}
    file.write_text(ORDERS_FILE.format(**told, source="", tables=""))
    with daemons() as start:
        daemon = start(file)
        yield subprocess.check_output([ONEFOLD, "page", "--url", daemon.url], text=True).strip()
        daemon.stop()


def _loaded(page: Page) -> int:
    """How many dead letters there are now."""
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_role("button", name="Load again")).to_be_visible()
    return page.get_by_role("main").locator("li.card").count()


def test_a_real_daemons_pipeline_is_shown_paused_resumed_and_stopped(
    browser: Browser, address: str, postgres_url: str, runtime: str
) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.get_by_role("link", name="orders").click(timeout=START_MS)
    state = page.locator("h1 + .badge")
    expect(state).to_have_text("running", timeout=START_MS)
    epoch = page.get_by_role("link", name="Epoch 1", exact=True)
    expect(epoch).to_be_visible(timeout=START_MS)
    expect(page.get_by_role("row").filter(has=epoch)).to_contain_text("complete", timeout=START_MS)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (300,)
    expect(page.get_by_role("row", name="0 150 0")).to_be_visible()
    expect(page.get_by_text("exactly-once, readers may see a part of an epoch").first).to_be_visible()
    steps = page.get_by_role("region", name="Where an epoch's time goes")
    expect(steps.get_by_role("row", name=re.compile(r"^run [\d.]+ s "))).to_be_visible()
    prepared = r"[\d.]+ s" if runtime == "engine" else "–"
    expect(steps.get_by_role("row", name=re.compile(f"^prepare {prepared} "))).to_be_visible()
    expect(page.get_by_role("group", name="Log of orders")).to_contain_text("info pipeline 'orders': generation 1")
    definition = page.get_by_role("group", name="Definition of orders")
    expect(definition).to_contain_text(f'sinks[0].url = "{shown_url(postgres_url)}"')

    page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("running")

    epoch.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Epoch 1")
    expect(page.get_by_role("row", name="acknowledged").filter(has_text="rows").first).to_be_visible()
    page.get_by_role("link", name="orders").click()

    page.get_by_role("link", name="3", exact=True).click()
    cards = page.get_by_role("main").locator("li.card")
    expect(cards).to_have_count(3)
    bad = cards.filter(has_text="offset 150")
    bad.get_by_text("Content", exact=True).click()
    expect(bad.get_by_role("group", name="Value")).to_have_text("<script>window.struck = 1</script>")
    bad.get_by_role("button", name="Send again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(bad).to_contain_text("offset 153", timeout=START_MS)  # where it is now, to be refused again
    wait_until(lambda: _loaded(page) == 4, "it is refused again")
    page.get_by_role("link", name="orders", exact=True).click()

    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(state).to_have_text("stopped", timeout=START_MS)
    assert errors == []
