"""What the page shows, and that it goes on showing what is so now."""

from __future__ import annotations

import re

import pytest
from harness.recorded_daemon import RecordedDaemon, acknowledged, at, epoch, picture, pipeline
from playwright.sync_api import Page, expect
from status_page.conftest import Open, look_again


def test_every_pipeline_is_listed_with_its_state_and_what_each_sink_guarantees(
    daemon: RecordedDaemon, opened: Open
) -> None:
    daemon.pipelines["clicks"] = pipeline("clicks", "paused")
    page = opened()
    expect(page.get_by_text("2 pipelines: 1 running, 1 paused")).to_be_visible()
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="clicks"))
    expect(card.get_by_text("paused", exact=True)).to_be_visible()
    expect(card.get_by_text("exactly-once, readers may see a part of an epoch").first).to_be_visible()
    card.get_by_role("link", name="clicks").click()
    expect(page.get_by_role("heading", level=1, name="clicks")).to_be_focused()


def test_a_pipeline_shows_counts_latest_epochs_sinks_positions_and_history(
    daemon: RecordedDaemon, opened: Open
) -> None:
    page = opened("#/pipelines/orders")
    for label, value in (("Opened", "64"), ("In progress", "1"), ("Complete", "60"), ("Failed", "3")):
        expect(_fact(page, label)).to_have_text(value)
    expect(_fact(page, "Last complete")).to_contain_text("epoch 60")
    expect(_fact(page, "Last failed")).to_have_text("epoch 31 given up, 4 min 50 s ago (2026-11-23 17:55:10)")
    expect(_fact(page, "Last start")).to_have_text(
        "generation 3, 4 min 40 s ago (2026-11-23 17:55:20); epochs decided before: 1 finished"
    )
    expect(_fact(page, "Last savepoint")).to_have_text("before-upgrade, epoch 28, 5 min ago (2026-11-23 17:55:00)")
    expect(page.get_by_text("Last savepoint restored")).to_have_count(0)
    latest = daemon.pipelines["orders"]["latest"]
    latest.update(savepoint=None, savepoint_restored=latest["savepoint"])
    look_again(page)
    expect(_fact(page, "Last savepoint")).to_have_text("none")
    expect(_fact(page, "Last savepoint restored")).to_have_text(
        "before-upgrade, epoch 28, 5 min 2 s ago (2026-11-23 17:55:00)"
    )
    expect(page.get_by_role("row", name="orders/3 150,033 310")).to_be_visible()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="Epoch 59"))
    expect(row.get_by_role("cell")).to_have_text(
        [
            *(
                "59",
                "complete",
                "2026-11-23 17:59:46",
                "1.5 s",
                "run 0.9 s, prepare 0.21 s, decide 0.08 s, commit 0.3 s",
            ),
            *("11,150", "1.34 MB", "orders acknowledgedaudit acknowledged"),
        ]
    )


def test_an_epoch_that_runs_says_which_subtasks_it_waits_for_and_unfolded_what_each_has_acknowledged(
    daemon: RecordedDaemon, opened: Open
) -> None:
    orders = daemon.pipelines["orders"]
    waits = ["<b>totals</b> in worker 1, at work in <b>totals</b>", *(f"sink {n} in worker 0" for n in range(6))]
    found = [
        acknowledged("orders", "<i>parsed</i>"),
        acknowledged("<b>totals</b>", missing=(1,), state_bytes=2_000_000),
    ]
    orders["running"] = {"epoch": 61, "since": at(95), "step": "run", "waits_for": waits, "operators": found}
    page = opened()
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="orders"))
    expect(card.get_by_role("group", name="Running epoch")).to_contain_text(
        "Not acknowledged by <b>totals</b> in worker"
    )
    card.get_by_role("link", name="orders").click()
    running = page.get_by_role("group", name="Running epoch")
    expect(running).to_contain_text("Epoch 61 runs for 1 min 35 s: records are read, processed and written.")
    expect(running).to_contain_text("at work in <b>totals</b>; sink 0 in worker 0; ")
    expect(running).to_contain_text("; and 2 more.")
    page.get_by_text("Acknowledgements of epoch 61").click()
    expect(page.get_by_role("row", name="orders → <i>parsed</i> 3 of 3 0.5 s 4.5 kB 0.5 s 0 B 0 B")).to_be_visible()
    expect(page.get_by_role("row", name="<b>totals</b> 2 of 3 0.5 s 3 kB 0.5 s 4 MB 400 kB")).to_be_visible()
    page.get_by_text("Subtasks of <b>totals</b>").first.click()
    missing = page.get_by_role("row", name="1 missing – – – – –")
    expect(missing).to_be_visible()
    orders["running"] |= {"step": "commit", "since": at(3)}
    look_again(page)
    expect(running).to_contain_text("runs for 5.1 s: each sink commits.")
    expect(running).not_to_contain_text("Not acknowledged")
    expect(missing).to_be_visible()  # what is unfolded stays so
    page.get_by_role("link", name="All pipelines").click()
    expect(card).to_be_visible()
    expect(card.get_by_role("group", name="Running epoch")).to_have_count(0)
    orders["running"] = None
    page.goto(f"{daemon.url}/#/pipelines/orders")
    look_again(page)
    expect(page.get_by_role("region", name="Checkpoints")).to_be_visible()
    expect(running).to_have_count(0)


def test_history_has_what_each_epoch_is_where_its_time_went_and_its_state_as_far_as_that_is_known(
    daemon: RecordedDaemon, opened: Open
) -> None:
    before, moved, measured = daemon.epochs["orders"][:3]
    before |= {"steps": None}
    moved |= {"kind": "move", "why": "savepoint <b>s</b>"}
    measured |= {"state_bytes": 6_000_000, "stored_bytes": 600_000}
    measured["operators"] = [acknowledged("totals", state_bytes=2_000_000), acknowledged("shop")]
    latest = daemon.pipelines["orders"]["latest"]
    latest["savepoint"] |= {"epoch": 58}
    latest["completed"] |= {"state_bytes": 6_000_000, "stored_bytes": 600_000}
    daemon.pipelines["orders"] |= {"checkpoint": "/var/lib/<b>orders</b>", "spark_state": {"rows": 4_096, "bytes": 2e6}}
    page = opened("#/pipelines/orders")
    expect(_fact(page, "Last complete")).to_contain_text(" in 1.5 s, 12,870 rows, state 6 MB")
    expect(_fact(page, "State on Spark")).to_have_text("4,096 rows, 2 MB")
    expect(_fact(page, "Its checkpoint")).to_have_text("/var/lib/<b>orders</b>")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="Epoch 60"))
    expect(row).to_contain_text("to its decision 1.2 s, commit 0.3 s")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="Epoch 59"))
    expect(row).to_contain_text("complete move: savepoint <b>s</b>")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="Epoch 58"))
    expect(row).to_contain_text("complete savepoint before-upgrade")
    expect(row).to_contain_text("6 MB600 kB")
    row.get_by_role("link").click()
    acks = page.get_by_role("region", name="Acknowledgements of its operators")
    expect(acks.get_by_role("row", name="totals 3 of 3 0.5 s 4.5 kB 0.5 s 6 MB 600 kB")).to_be_visible()
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Epoch 60").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Epoch 60")
    expect(acks).to_have_count(0)


def test_what_an_operator_keeps_of_a_key_is_asked_for_by_a_field(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("heading", name="State", exact=True)).to_have_count(0)
    key = ["account string", "day date32[day]"]
    daemon.operators = [
        {"uid": "seen", "key": key, "states": ["last"]},
        {"uid": "totals", "key": key, "states": ["aggregates"]},
    ]
    rows = [{"account": "<b>a17</b>", "total": 12, "mean": None}]
    about = {"epoch": 60, "timestamp_ms": 0, "watermark": None, "view": "committed"}
    path = "/pipelines/orders/state/totals/aggregates"
    daemon.answers[path] = 200, [{"rows": rows, **about}]
    look_again(page)
    page.get_by_role("combobox").select_option("totals: aggregates by account string, day date32[day]")
    page.get_by_label("the key").fill("a17, 2026-01-01")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("row", name="<b>a17</b> 12 null")).to_be_visible()
    expect(page.get_by_text("As of epoch 60, which is complete.")).to_be_visible()
    assert {"key": '["a17","2026-01-01"]'} in daemon.queries
    look_again(page)  # another look leaves the answer and the field as they are
    expect(page.get_by_role("row", name="<b>a17</b> 12 null")).to_be_visible()
    expect(page.get_by_label("the key")).to_have_value("a17, 2026-01-01")
    daemon.answers[path] = 422, {"code": "state-key", "message": "it is no key"}
    page.get_by_label("the key").press("Enter")
    expect(page.get_by_text("it is no key (state-key)")).to_be_visible()


def test_a_new_epoch_and_new_figures_appear_and_the_focus_stays_where_it_was(
    daemon: RecordedDaemon, opened: Open
) -> None:
    page = opened("#/pipelines/orders")
    older = page.get_by_role("link", name="Epoch 58")
    older.focus()
    daemon.epochs["orders"].insert(0, epoch(61, "open", last=61))
    daemon.pipelines["orders"].update(epoch=61, behind={"record": 7})
    look_again(page)
    expect(page.get_by_role("link", name="Epoch 61")).to_be_visible()
    expect(_fact(page, "Behind")).to_have_text("7 records")
    expect(older).to_be_focused()


def test_lag_and_throughput_are_lines_that_say_in_words_what_they_show(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("img", name="Throughput: 1,287 rows/s now, between 900 and 1,330")).to_be_visible()
    expect(page.get_by_role("img", name="Lag: 1,601 records now, between 1,240 and 1,735")).to_be_visible()
    daemon.lags["orders"].append({"at": at(0), "behind": {"record": 40, "file": 2}})
    daemon.lags["orders"].append({"at": at(0), "behind": {"record": 40, "file": 3}})
    look_again(page)
    expect(page.get_by_role("img", name="Lag: 40 records now, between 40 and 1,735")).to_be_visible()
    expect(page.get_by_role("img", name="Lag: 3 files now, between 2 and 3")).to_be_visible()
    daemon.lags["orders"] = []
    look_again(page)
    expect(page.get_by_text("two looks make a line")).to_be_visible()


def test_the_graph_is_drawn_with_what_flows_in_it_and_changes_with_it(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    graph = page.get_by_role("group", name="Graph of orders")
    expect(graph.get_by_text("11,999 rows/s, 1.2 MB/s")).to_be_visible()
    expect(graph.get_by_text("7% busy, 41% backpressured")).to_be_visible()
    expect(graph.get_by_text("1,204,331 entries, 88.1 MB")).to_be_visible()
    expect(graph.get_by_role("img")).to_have_accessible_name(re.compile("valid; 7% busy, 41% backpressured; "))
    for count in (1, 8, 40):
        daemon.graphs["orders"] = picture(*(f"operator-{number}" for number in range(count)))
        look_again(page)
        expect(graph.locator("rect.box")).to_have_count(count + 3)
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    del daemon.graphs["orders"]
    look_again(page)
    expect(page.get_by_text("It is known once the pipeline has started.")).to_be_visible()


def test_where_an_epochs_time_goes_is_shown_of_the_last_one_and_of_all_that_are_known(
    daemon: RecordedDaemon, opened: Open
) -> None:
    of_59 = daemon.epochs["orders"][1]["steps"]
    of_59 |= {"run_s": 1.9, "prepare_s": None}
    page = opened("#/pipelines/orders")
    steps = page.get_by_role("region", name="Where an epoch's time goes")
    expect(steps.get_by_role("row", name="run 0.9 s 0.95 s 9 % records are read")).to_be_visible()
    expect(steps.get_by_role("row", name="prepare 0.21 s 0.21 s 2 %")).to_be_visible()
    page.get_by_role("link", name="Epoch 59").click()
    expect(page.get_by_role("row", name="run 1.9 s 18 %")).to_be_visible()
    expect(page.get_by_role("row", name="prepare – –")).to_be_visible()
    page.get_by_role("link", name="orders").click()
    for each in daemon.epochs["orders"]:
        each["steps"] = None
    look_again(page)
    expect(steps).to_contain_text("It is known of epochs that were finished since the daemon was started.")


def test_the_last_lines_of_the_log_come_as_they_are_logged_and_the_definition_is_asked_for_once(
    daemon: RecordedDaemon, opened: Open
) -> None:
    page = opened("#/pipelines/orders")
    log = page.get_by_role("group", name="Log of orders")
    expect(log.get_by_role("listitem").first).to_contain_text("2026-11-23 17:59:18 error Traceback")
    expect(page.get_by_role("group", name="Definition of orders")).to_contain_text('"sasl.password" = "***"')
    line = {"at": at(1), "level": "warning", "message": "<b>no HTML</b>"}
    daemon.logs["orders"] = [*daemon.logs["orders"], line]
    look_again(page)
    expect(log.get_by_role("listitem").first).to_have_text("2026-11-23 17:59:59 warning <b>no HTML</b>")
    assert daemon.gets.count("/pipelines/orders/definition") == 1 < daemon.gets.count("/pipelines/orders/log")
    daemon.logs["orders"], daemon.definitions["clicks"] = [], []
    daemon.pipelines["clicks"] = pipeline("clicks")
    look_again(page)
    expect(page.get_by_text("Nothing was logged since the daemon was started.")).to_be_visible()
    page.goto(f"{daemon.url}/#/pipelines/clicks")
    expect(page.get_by_text("It is defined in Python.")).to_be_visible()


def test_older_epochs_come_when_asked_for_and_stay(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    epochs = page.get_by_role("row").get_by_role("link", name="Epoch ")
    expect(epochs).to_have_count(12)
    page.get_by_role("button", name="Older epochs").click()
    expect(epochs).to_have_count(50)
    page.get_by_role("button", name="Older epochs").click()
    expect(epochs).to_have_count(60)
    daemon.epochs["orders"].insert(0, epoch(61, last=61))
    look_again(page)
    expect(epochs).to_have_count(61)
    expect(page.get_by_role("button", name="Older epochs")).to_have_count(0)


def test_an_epoch_shows_its_range_and_what_each_task_acknowledged(opened: Open) -> None:
    page = opened("#/pipelines/orders")
    page.get_by_role("link", name="Epoch 57").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Epoch 57")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("row", name="orders/1 140,011 142,511 2,500")).to_be_visible()
    expect(page.get_by_role("row", name="audit onefold/audit/3/57/0003 two-phase 3,110 373 kB")).to_be_visible()
    expect(page.get_by_text("8 tasks acknowledged: the decision names what each has prepared.")).to_be_visible()
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_a_change_of_state_is_said_to_screen_readers_and_progress_is_not(daemon: RecordedDaemon, opened: Open) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    daemon.pipelines["orders"].update(behind={"record": 3})
    look_again(page)
    expect(_fact(page, "Behind")).to_have_text("3 records")
    expect(page.get_by_role("status")).to_be_empty()
    daemon.pipelines["orders"].update(state="waiting", error={"code": "sink-down", "message": "no", "at": None})
    look_again(page)
    expect(page.get_by_role("status")).to_have_text("orders is waiting.")
    expect(page).to_have_title("orders: waiting – onefold")


@pytest.mark.slow
def test_a_daemon_that_is_gone_is_said_with_when_it_was_last_seen_and_comes_back(
    daemon: RecordedDaemon, opened: Open
) -> None:
    page = opened("#/pipelines/orders")
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    daemon.stop()
    look_again(page)
    expect(page.get_by_text("The daemon is not reachable. It answered last at 2026-11-23 18:00:0")).to_be_visible()
    expect(page.get_by_text("What is shown is from then.")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()
    expect(page).to_have_title("not reachable – onefold")
    daemon.start_again()
    look_again(page)
    expect(page.get_by_text("not reachable")).to_have_count(0)
    expect(page.get_by_role("status")).to_have_text("The daemon answers again.")
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()


def test_without_the_store_the_graph_and_the_lag_are_shown_and_without_these_the_history(
    daemon: RecordedDaemon, opened: Open
) -> None:
    away = (503, {"code": "postgres-unreachable", "message": "no answer"})
    daemon.answers["/pipelines/orders/epochs"] = away
    page = opened("#/pipelines/orders")
    expect(page.get_by_text("no answer (postgres-unreachable)")).to_be_visible()
    expect(page.get_by_role("group", name="Graph of orders")).to_be_visible()
    expect(page.get_by_role("img", name="Lag: ")).to_be_visible()
    daemon.answers = {"/pipelines/orders/graph": away}
    look_again(page)
    expect(page.get_by_role("link", name="Epoch 60").first).to_be_visible()


def test_an_address_of_nothing_says_so(daemon: RecordedDaemon, opened: Open) -> None:
    expect(opened("#/pipelines/other").get_by_text("This daemon has no pipeline other.")).to_be_visible()
    daemon.answers["/pipelines/orders/epochs/99"] = (404, {"code": "epoch-unknown", "message": "there is no epoch 99"})
    expect(opened("#/pipelines/orders/epochs/99").get_by_text("there is no epoch 99 (epoch-unknown)")).to_be_visible()


def test_a_store_that_does_not_answer_is_said_and_the_page_goes_on(daemon: RecordedDaemon, opened: Open) -> None:
    away = {"code": "database-unavailable", "message": "the store is away"}
    daemon.answers["/pipelines/orders/epochs"] = (503, away)
    daemon.pipelines["orders"].update(counts=None, positions=None, lag=None, behind=None, store_error=away)
    page = opened("#/pipelines/orders")
    expect(page.get_by_text("the store is away (database-unavailable)")).to_be_visible()
    expect(page.get_by_role("group", name="Checkpoint store")).to_contain_text("the store is away")
    expect(page.get_by_text("No position is known yet.")).to_be_visible()
    del daemon.answers["/pipelines/orders/epochs"]
    look_again(page)
    expect(page.get_by_role("row").get_by_role("link", name="Epoch 60")).to_be_visible()


def _fact(page: Page, label: str) -> object:
    return page.locator("dl > div").filter(has=page.get_by_text(label, exact=True)).locator("dd").first
