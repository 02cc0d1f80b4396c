"""Which results of windows that come again sinks take, as they are set up: who replace, add, count or append."""

from __future__ import annotations

from typing import Any

import pytest
from flow_parts import AnySource
from harness.errors import raises
from timed_rows import ROWS

from onefold.core import ConfigError, Sink
from onefold.flow import EachEpoch, Every, Flow, Session, Tumbling, count, monotonic
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink, SqlSink

EARLY: dict[str, Any] = {"trigger": Every("5 seconds")}
OF_WINDOWS = "key, window_start"


def write(sink: Sink, window: Any = Tumbling("1 minute"), **given: Any) -> None:  # noqa: B008 - a value
    source: Any = AnySource("rows", ROWS, is_resolved=True)
    rows = Flow("windows").source(source, uid="rows", watermarks=monotonic("at")).key_by("key")
    rows.window(window, **given).aggregate(uid="n", n=count()).sink(sink)


def hbase(row_key: str = OF_WINDOWS, **given: Any) -> HBaseSink:
    return HBaseSink("thrift:9090", "t", row_key=row_key, family="f", **given)


def kafka(**given: Any) -> KafkaSink:
    return KafkaSink("t", bootstrap_servers="broker:9092", **given)


ADDS = {"n": "sum", "window_end": "max"}
MERGING = {
    "incremental": {"mode": "incremental", "sequence": "emission", "merge": ADDS},
    "incremental, shuffled by the user": {
        "mode": "incremental",
        "sequence": "emission",
        "merge": ADDS,
        "repartition": False,
    },
    "rolling": {"mode": "rolling", "merge": {**ADDS, "emission": "max"}},
}


@pytest.mark.parametrize("mode", MERGING)
def test_hbase_adds_parts_and_takes_no_results_that_take_others_back(mode: str) -> None:
    write(hbase(**MERGING[mode]), **EARLY, results="discarding")
    with raises(ConfigError, "retractions-merged"):
        write(hbase(**MERGING[mode]), **EARLY, results="retracting")
    with raises(ConfigError, "update-into-appends"):
        write(hbase(**MERGING[mode]), **EARLY)


REPLACING = {
    "row_key": {"order": "emission"},
    "rolling": {"mode": "rolling", "merge": "replace", "order": "emission"},
    "incremental": {"mode": "incremental", "merge": "replace", "sequence": "emission"},
}


@pytest.mark.parametrize("mode", REPLACING)
def test_hbase_that_replaces_rows_takes_early_results_in_their_order(mode: str) -> None:
    write(hbase(**REPLACING[mode]), **EARLY)
    for results, code in (("discarding", "window-parts-replaced"), ("retracting", "retractions-replaced")):
        with raises(ConfigError, code):
            write(hbase(**REPLACING[mode]), **EARLY, results=results)


def test_hbase_without_an_order_that_tells_early_results_of_an_epoch_apart_takes_one_each_epoch() -> None:
    write(hbase(), trigger=EachEpoch())
    write(hbase(delete_when_true="retracts"), Session("1 minute"), trigger=EachEpoch())
    for order in ((), "n", "n, emission"):
        with raises(ConfigError, "early-results-order"):
            write(hbase(order=order), **EARLY)


def test_numbers_of_emissions_are_those_of_a_window() -> None:
    """A sink that takes a row for a repeat if its number is not above the last one needs one number a row."""
    of_key, of_window = (kafka(delivery="keyed", id=(*id_, "emission")) for id_ in (("key",), ("key", "window_start")))
    write(of_window, **EARLY, results="discarding")
    with raises(ConfigError, "retractions-merged"):
        write(of_window, **EARLY, results="retracting")
    for sink in (of_key, hbase("key", **MERGING["incremental"])):
        with raises(ConfigError, "emission-of-several", "window_start"):
            write(sink, **EARLY, results="discarding")


def test_a_topic_that_keeps_the_last_record_of_a_key_takes_one_result_each_epoch() -> None:
    write(kafka(key=("key", "window_start")), trigger=EachEpoch())
    with raises(ConfigError, "early-results-order"):
        write(kafka(key=("key", "window_start")), **EARLY)
    write(kafka(), **EARLY, results="retracting")


@pytest.mark.parametrize(
    "sink",
    [
        lambda **given: PostgresSink("postgresql://localhost/x", "t", **given),
        lambda **given: SqlSink("mysql://localhost/x", "t", **given),
    ],
    ids=["Postgres", "SQL"],
)
def test_tables_replace_by_the_number_or_append(sink: Any) -> None:
    upsert = {"mode": "upsert", "key": ["key", "window_start"], "order": "emission"}
    write(sink(**upsert), **EARLY)
    write(sink(**upsert, delete_when_true="retracts"), Session("1 minute"), trigger=EachEpoch())
    write(sink(), **EARLY, results="retracting")
    with raises(ConfigError, "retractions-replaced"):
        write(sink(**upsert), **EARLY, results="retracting")
