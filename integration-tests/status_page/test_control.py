"""Buttons: those that the API allows, and what comes of them; names and texts from outside stay texts."""

from __future__ import annotations

import pytest
from harness.recorded_daemon import RecordedDaemon, at, epoch, letter, pipeline
from playwright.sync_api import expect
from status_page.conftest import Open, look_again

from onefold.daemon.access.proof import Nonces

HOSTILE = '<img src=x onerror="window.struck=1"><script>window.struck=1</script>&quot;\'`${1}'


def test_there_is_a_button_for_each_action_that_the_api_allows_and_no_other(
    daemon: RecordedDaemon, opened: Open
) -> None:
    daemon.pipelines["orders"]["actions"] = ["resume", "stop", "explode"]
    page = opened("#/pipelines/orders")
    buttons = page.get_by_role("group", name="Control orders").get_by_role("button")
    expect(buttons).to_have_text(["Resume", "Stop"])
    daemon.pipelines["orders"]["actions"] = []
    look_again(page)
    expect(buttons).to_have_count(0)


@pytest.mark.slow
def test_pause_by_keyboard_sends_the_key_and_the_focus_stays_on_the_button_that_resumes(
    daemon: RecordedDaemon, opened: Open
) -> None:
    page = opened("#/pipelines/orders")
    page.get_by_role("button", name="Pause").focus()
    daemon.pipelines["orders"] = pipeline("orders", "paused")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume")).to_be_focused()
    ((path, _, headers),) = daemon.posts
    assert path == "/pipelines/orders/pause"
    assert headers["authorization"] == f"Bearer {daemon.token}"


def test_a_button_that_goes_gives_the_focus_to_the_title(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    page.get_by_role("button", name="Restart").focus()
    daemon.pipelines["orders"].update(actions=[], state="stopping")
    look_again(page)
    expect(page.get_by_role("heading", level=1)).to_be_focused()


@pytest.mark.slow
def test_stop_asks_first(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    stop = page.get_by_role("button", name="Stop")
    stop.click()
    expect(page.get_by_role("dialog", name="Stop orders?")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(stop).to_be_focused()
    assert daemon.posts == []
    stop.click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("group", name="Control orders")).not_to_contain_text("Stopping")
    assert [path for path, _, _ in daemon.posts] == ["/pipelines/orders/stop"]


def test_a_refusal_is_told_with_its_code_and_can_be_dismissed(daemon: RecordedDaemon, opened: Open) -> None:
    daemon.answers["/pipelines/orders/pause"] = (409, {"code": "not-running", "message": "orders is not running"})
    page = opened("#/pipelines/orders")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert")).to_contain_text("orders is not running (not-running)")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("address", ["", "#/pipelines/{name}", "#/pipelines/{name}/epochs/60", "#/pipelines/{name}x"])
def test_texts_from_outside_are_never_html(daemon: RecordedDaemon, opened: Open, address: str) -> None:
    error = {"code": HOSTILE, "message": HOSTILE, "at": None}
    sink = {"name": HOSTILE, "kind": HOSTILE, "promise": HOSTILE, "atomic": True, "reason": HOSTILE}
    source, places = {"kind": HOSTILE, "name": HOSTILE}, {HOSTILE: HOSTILE}
    one = pipeline(HOSTILE, "waiting", error=error, sinks=[sink], source=source, positions=places)
    struck = epoch(60, sinks=(HOSTILE,)) | {"error": HOSTILE, "range": {"start": places, "end": places}}
    daemon.pipelines, daemon.epochs = {HOSTILE: one}, {HOSTILE: [struck]}
    page = opened()
    page.evaluate(
        "([address, name]) => { location.hash = address.replace('{name}', encodeURIComponent(name)) }",
        [address, HOSTILE],
    )
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.struck") is None
    assert page.locator("main img, main script").count() == 0


def test_a_dead_letter_is_browsed_and_sent_again_once_it_is_confirmed(daemon: RecordedDaemon, opened: Open) -> None:
    sent = {"state": "sent", "at": at(5), "offset": 150_099}
    row = {"place": None, "position": {"id": 9}, "sink": "orders", "can_send": False, "value": '{"id": 9}'}
    daemon.letters["letters"] = [letter(150_040), letter(150_020, sent=sent, can_send=False), letter(0, **row)]
    daemon.letters["elsewhere"] = ["audit"]
    page = opened("#/pipelines/orders")
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters of orders")
    expect(page.get_by_text("Those in audit are in no Postgres table")).to_be_visible()
    cards = page.get_by_role("main").locator("li.card")
    expect(cards.nth(1)).to_contain_text("sent again")
    expect(cards.nth(2)).to_contain_text("A row for orders")
    expect(page.get_by_role("button", name="Send again")).to_have_count(1)
    cards.nth(0).get_by_text("Content").click()
    expect(cards.nth(0).get_by_role("group", name="Value")).to_have_text('{"id": 4711, "account": 17}')
    look_again(page)
    expect(cards.nth(0).get_by_role("group", name="Value")).to_be_visible()
    page.get_by_role("button", name="Send again orders/2 offset 150040").click()
    expect(page.get_by_role("dialog")).to_contain_text("Every reader of topic orders gets it once more")
    assert daemon.posts == []
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_have_text("orders/2 offset 150040 was sent again.")
    ((path, body, _),) = daemon.posts
    assert path == "/pipelines/orders/dead-letters/send"
    assert body == {"topic": "orders", "partition": 2, "offset": 150_040}


def test_dead_letters_are_counted_by_reason_shown_by_it_and_all_sent_again(
    daemon: RecordedDaemon, opened: Open
) -> None:
    path = "/pipelines/orders/dead-letters"
    row = {"place": None, "position": {"id": 9}, "sink": "orders", "can_send": False}
    daemon.letters["letters"] = [letter(150_040), letter(0, **row), letter(150_020)]
    daemon.reasons = [
        {"sink": "dead", "reason": f"no JSON & <b>{HOSTILE}", "letters": 1_200, "first_epoch": 3, "last_epoch": 58},
        {"sink": "orders", "reason": "n is null", "letters": 1, "first_epoch": 9, "last_epoch": 9},
    ]
    page = opened("#/pipelines/orders/dead-letters")
    page.get_by_role("button", name="Count by reason").click()
    expect(page.get_by_role("status")).to_have_text("2 reasons.")
    cells = page.get_by_role("main").get_by_role("row").nth(1).get_by_role("cell")
    expect(cells.nth(0)).to_have_text("1,200")
    expect(cells.nth(2)).to_have_text("3 to 58")
    page.get_by_role("button", name="Show those with n is null").click()
    expect(page.get_by_text("Only those with “n is null” in their reason.")).to_be_visible()
    assert daemon.queries[-1] == {"reason": "n is null"}
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_text("Only those with")).to_have_count(0)
    assert daemon.gets.count(f"{path}/reasons") == 1
    page.get_by_role("button", name="Send all 2 again").click()
    expect(page.get_by_role("dialog")).to_contain_text("Send 2 records again?")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_have_text("2 were sent again.")
    assert [body["offset"] for _, body, _ in daemon.posts] == [150_020, 150_040]
    daemon.answers[f"{path}/send"] = (409, {"code": "letter-sent", "message": "It was sent already."})
    page.get_by_role("button", name="Send all 2 again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_have_text("0 were sent again, 2 were refused.")
    daemon.answers[f"{path}/send"] = (503, {"code": "letter-unanswered", "message": "Nobody answers."})
    page.get_by_role("button", name="Send all 2 again").click()
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("Nobody answers. (letter-unanswered)")
    assert len(daemon.posts) == 5


def test_dead_letters_are_asked_for_when_they_are_opened_and_on_request_and_at_no_other_time(
    daemon: RecordedDaemon, opened: Open
) -> None:
    path, slow = "/pipelines/orders/dead-letters", {"code": "letters-slow", "message": "An index finds them at once."}
    daemon.letters["letters"] = [letter(1)]
    page = opened("#/pipelines/orders/dead-letters")
    cards, button = page.get_by_role("main").locator("li.card"), page.get_by_role("button", name="Load again")
    expect(cards).to_have_count(1)
    for _ in range(3):
        seen = page.locator("#contact").inner_text()
        look_again(page)
        expect(page.locator("#contact")).not_to_have_text(seen)
    assert daemon.gets.count(path) == 1
    daemon.letters["letters"] = [letter(2), letter(1)]
    button.focus()
    page.keyboard.press("Enter")
    expect(cards).to_have_count(2)
    expect(button).to_be_focused()
    expect(page.get_by_role("status")).to_have_text("2 dead letters.")
    daemon.answers[path] = (503, slow)
    button.click()
    expect(page.get_by_role("alert")).to_have_text("An index finds them at once. (letters-slow)")
    expect(cards).to_have_count(2)
    look_again(page)
    del daemon.answers[path]
    button.click()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert daemon.gets.count(path) == 4


def test_rows_that_a_sink_refused_are_reached_where_no_count_of_dead_letters_is_known(
    daemon: RecordedDaemon, opened: Open
) -> None:
    daemon.pipelines["orders"]["dead_letters"] = None
    page = opened("#/pipelines/orders")
    page.get_by_role("link", name="browse").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters of orders")
    daemon.pipelines["orders"]["takes_dead_letters"] = False
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    look_again(page)
    expect(page.get_by_text("Dead letters")).to_have_count(0)


def test_a_dead_letters_content_is_never_html(daemon: RecordedDaemon, opened: Open) -> None:
    told = {"reason": HOSTILE, "key": HOSTILE, "value": HOSTILE, "headers": [{"key": HOSTILE, "value": HOSTILE}]}
    place = {"topic": HOSTILE, "partition": 0, "offset": 1}
    daemon.letters = {"letters": [letter(1, place=place, **told)], "elsewhere": [HOSTILE]}
    page = opened("#/pipelines/orders/dead-letters")
    page.get_by_text("Content", exact=True).click()
    expect(page.get_by_role("group", name="Value")).to_have_text(HOSTILE)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.struck") is None
    assert page.locator("main img, main script").count() == 0


@pytest.mark.slow
def test_a_link_logs_a_browser_in_until_the_daemon_ends_and_leaves_nothing_in_its_address(
    opened: Open, daemon: RecordedDaemon
) -> None:
    page = opened("#/pipelines/orders", is_logged_in=False)
    expect(page.get_by_text("This browser has not logged in")).to_be_visible()
    page.goto(daemon.page)
    page.get_by_role("link", name="orders").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert [path for path, _, _ in daemon.posts] == ["/pipelines/orders/pause"]
    assert "key" not in page.url
    page.reload()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    daemon.stop()
    daemon.nonces = Nonces()
    daemon.start_again()
    look_again(page)
    look_again(page)
    expect(page.get_by_text("This browser has not logged in")).to_be_visible()
