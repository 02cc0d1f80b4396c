"""The metrics, and the dashboard and the alert rules that ask for them. Spark is a stub; the store is a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.daemon_stubs import Asking, daemon_of, whole
from harness.stored_epochs import with_epochs
from prometheus_client.parser import text_string_to_metric_families

from onefold.core.waiting import Wait
from onefold.daemon.control import ALLOWED, Action
from onefold.daemon.hosting.messages import Drawing, Finished, Flowing, Recovered, Totals
from onefold.daemon.pipeline_run import RunState
from onefold.daemon.watch.poller import Poller
from onefold.flow.drawing.svg import Box, Connector
from onefold.flow.time.told import ToldClock
from onefold.sources.kafka.planning.lag import PartitionLag
from onefold.store.epoch_figures import EpochSteps

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ALERTS = EXAMPLES / "onefold-alerts.yml"
DASHBOARD = EXAMPLES / "onefold-dashboard.json"
NAME = re.compile(r"\b(?:onefold|process)_[a-z_]+")
Samples = dict[str, list[tuple[dict[str, str], float]]]
STEPS = EpochSteps(wait_s=1.5, open_s=0.25, run_s=2, prepare_s=None, decide_s=0.5, commit_s=1)
PARTITION = PartitionLag("orders", 0, position=30, first=10, stable_end=42, log_end=45)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """Its pipeline has completed three epochs in generation 1, which is its own, and runs the fourth."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with_epochs(url, 3).close()
    monkeypatch.setattr("onefold.sources.kafka.planning.lag.lag", lambda *_: (PARTITION,))
    monkeypatch.setattr("onefold.daemon.watch.watch._SINKS_S", 0.2)
    monkeypatch.setattr("onefold.daemon.watch.watch._SOURCE_S", 0.2)
    pipeline = whole(tmp_path, on_error="dead_letter")
    with daemon_of(pipeline) as ask:
        (query,) = pipeline.queries
        query.epochs.take([Finished(epoch=number, steps=STEPS) for number in (2, 3)])
        query.recovered, query.totals = Recovered(generation=1, finished=0), Totals(dead_letters=2)
        yield ask


def scraped(ask: Asking) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(ask("GET", "/metrics").body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def all_known(ask: Asking) -> Samples:
    """The samples once every look has had its answer."""
    wait = Wait(120)
    while not {"onefold_rows_total", "onefold_lag_records", "onefold_prepared_life_seconds"} <= scraped(ask).keys():
        assert wait.again(), scraped(ask).keys()
    return scraped(ask)


def families(ask: Asking) -> set[str]:
    """The names that may stand in a query, also of what has no sample yet."""
    text = ask("GET", "/metrics").body.decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    histograms = {
        f"{name}_{part}" for name, kind in kinds.items() for part in ("bucket", "count", "sum") if kind == "histogram"
    }
    return {name for name, kind in kinds.items() if kind != "histogram"} | histograms


def test_each_value_is_the_one_that_store_and_servers_have(daemon: Asking) -> None:
    found = all_known(daemon)

    def value(name: str, **labels: str) -> float:
        ((_, only),) = [each for each in found[name] if labels.items() <= each[0].items()]
        return only

    mine = {"pipeline": "orders"}
    assert value("onefold_rows_total", sink="rows", **mine) == 30
    assert value("onefold_bytes_total", sink="rows", **mine) == 240
    assert value("onefold_epoch_duration_seconds_count", **mine) == 3
    assert value("onefold_epoch_duration_seconds_bucket", le="2.5", **mine) == 0
    assert value("onefold_epoch_duration_seconds_bucket", le="5.0", **mine) == 3
    assert 3 <= value("onefold_epoch_commit_seconds_sum", **mine) <= 5
    assert value("onefold_epoch", **mine) == 3
    assert 0 <= value("onefold_epoch_age_seconds", **mine) < 30
    assert 3 <= value("onefold_epoch_running_seconds", **mine) < 30
    assert value("onefold_generation", **mine) == 1
    assert [labels["state"] for labels, is_so in found["onefold_pipeline_state"] if is_so] == ["running"]
    assert value("onefold_lag_records", topic="orders", partition="0", **mine) == 12
    assert value("onefold_retention_headroom_records", topic="orders", partition="0", **mine) == 20
    assert value("onefold_in_doubt", sink="rows", **mine) == 1
    assert value("onefold_oldest_prepared_seconds", sink="rows", **mine) == 12
    assert value("onefold_prepared_life_seconds", sink="rows", **mine) == 48
    steps = {labels["step"]: took_s for labels, took_s in found["onefold_epoch_step_seconds_total"]}
    assert steps == {"wait": 3, "open": 0.5, "run": 4, "decide": 1, "commit": 2}, "prepare is not known here"
    assert value("onefold_dead_letters_total", **mine) == 2
    assert "onefold_records_skipped_total" not in found, "its source puts bad records aside: none is skipped"
    assert (value("onefold_store_up", **mine), value("onefold_fenced", **mine)) == (1, 0)


def test_operators_have_where_their_time_goes_and_what_they_keep(tmp_path: Path) -> None:
    pipeline = whole(tmp_path)
    boxes = tuple(Box(number, name, "", (), "function") for number, name in enumerate(("in", "totals")))
    with daemon_of(pipeline) as ask:
        (query,) = pipeline.queries
        query.traffic.draw(Drawing(boxes=boxes, ways=(Connector(0, 1, "by key", True),)))
        for at in range(2):
            shares = {"busy": {1: 3 * at}, "backpressured": {0: at, 1: at}, "looks": 4 * at}
            clock = ToldClock(1_500_000, "watermark 00:00:01.5", "orders/3", late=2)
            flowing = Flowing(ways=((0, 0),), state={1: (1_200, 34_000_000)}, times={1: clock}, **shares)
            query.traffic.take(Flowing.model_validate_json(flowing.model_dump_json()))
        found = scraped(ask)
        names = ("busy_ratio", "backpressured_ratio", "state_entries", "state_bytes", "watermark_timestamp_seconds")
        of = {name: {labels["operator"]: n for labels, n in found[f"onefold_operator_{name}"]} for name in names}
        (told,) = ask.get("/pipelines")
        graph = ask.get("/pipelines/orders/graph")
    assert of == {
        "busy_ratio": {"in": 0, "totals": 0.75},
        "backpressured_ratio": {"in": 0.25},
        "state_entries": {"totals": 1_200},
        "state_bytes": {"totals": 34_000_000},
        "watermark_timestamp_seconds": {"totals": 1.5},
    }
    nothing = dict.fromkeys(("state_entries", "state_bytes", "watermark", "waits_for", "late_rows"))
    time = {"watermark": "1970-01-01T00:00:01.500000Z", "waits_for": "orders/3", "late_rows": 2}
    assert told["operators"] == [
        {"name": "in", "busy": 0, "backpressured": 0.25, **nothing},
        {
            "name": "totals",
            "busy": 0.75,
            "backpressured": None,
            "state_entries": 1_200,
            "state_bytes": 34_000_000,
            **time,
        },
    ]
    said = ("watermark 00:00:01.5", "waits for orders/3", "2 late rows")
    figures = [each["children"] for each in graph["svg"]["children"] if each["attributes"].get("class") == "figure"]
    assert figures == [
        ["  0% busy,  25% backpressured"],
        [" 75% busy"],
        ["1,200 entries, 34.0 MB"],
        *([each] for each in said),
    ]


def test_epochs_are_counted_once_however_often_somebody_looks(daemon: Asking) -> None:
    all_known(daemon)
    for _ in range(5):
        found = scraped(daemon)
    assert found["onefold_rows_total"] == [({"pipeline": "orders", "sink": "rows"}, 30.0)]


def test_what_is_not_known_is_left_out(daemon: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    all_known(daemon)
    monkeypatch.setattr(Poller, "value", None)
    monkeypatch.setattr(Poller, "has_answer", False)
    found = scraped(daemon)
    for name in ("lag_records", "in_doubt", "oldest_prepared_seconds", "epoch", "epoch_age_seconds"):
        assert f"onefold_{name}" not in found
    assert found["onefold_store_up"] == [({"pipeline": "orders"}, 0.0)]


def test_the_docs_have_each_metric_each_path_and_each_state(daemon: Asking) -> None:
    page = (EXAMPLES.parent / "daemon.md").read_text()
    exported = {re.sub("_(bucket|sum|count)$", "", name) for name in families(daemon) if name.startswith("onefold")}
    assert set(re.findall(r"^\| `(onefold_\w+)`", page, re.MULTILINE)) == exported
    for path in daemon.get("/openapi.json")["paths"]:
        assert f" {path}`" in page or path.rpartition("/")[2] in ("resume", "stop", "restart"), path
    listed = dict(re.findall(r"^\| (\w+) \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    for state in RunState:
        told = {action for action in Action if action.value in listed[state.value]}
        assert told == ALLOWED[state], state


def _queries(found: Any) -> Iterator[str]:
    """All PromQL of a dashboard."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("expr", "query") and isinstance(value, str) and value != "prometheus":
                yield value
            else:
                yield from _queries(value)
    elif isinstance(found, list):
        for each in found:
            yield from _queries(each)


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are_and_for_all_of_them(daemon: Asking) -> None:
    all_known(daemon)
    known, dashboard = families(daemon), json.loads(DASHBOARD.read_text())
    asked = {name for query in _queries(dashboard) for name in NAME.findall(query)}
    assert asked - known == set()
    assert {re.sub("_(sum|count)$", "_bucket", name) for name in known if name.startswith("onefold")} - asked == set()
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24, "panels do not overlap"


def test_the_alerts_ask_for_metrics_and_labels_that_there_are(daemon: Asking) -> None:
    samples, known = all_known(daemon), families(daemon)
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 10
    for rule in group["rules"]:
        asked = set(NAME.findall(rule["expr"]))
        assert asked and asked - known == set(), rule["alert"]
        labels = {"instance"} | {label for name in asked for each, _ in samples.get(name, []) for label in each}
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert told <= labels, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["action"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
