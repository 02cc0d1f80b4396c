"""What a mechanism makes of a flow's guarantee, and what it refuses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from flow_parts import ORDERS, AnySink, AnySource, orders
from harness.errors import raises

from onefold.core import ConfigError, SinkKind, Upsert
from onefold.core.checks import present
from onefold.core.contract import MOVED, EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.core.restart import Restart
from onefold.engine.dataflow.alignment import Alignment
from onefold.engine.dataflow.chains import plan
from onefold.engine.driver import opening
from onefold.engine.driver.flow_run import FlowRun, RunSettings
from onefold.engine.driver.resume_point import check_same_mechanism, with_workers
from onefold.engine.driver.running import recover
from onefold.flow import Flow, Ttl, Tumbling, bounded, count
from onefold.flow.planning import check_mechanism
from onefold.flow.processing.mechanisms import (
    MECHANISMS,
    Mechanism,
    check_sinks_shown_early,
    has_snapshots,
    marked,
    may_double,
    mechanism_of,
)

WITHOUT: tuple[Mechanism, ...] = ("transaction", "ack")


def totals() -> Flow:
    flow, stream = orders()
    counted = stream.key_by("account").aggregate(uid="totals", orders=count())
    counted.sink(AnySink("table", replaces=Upsert(("account",), ("onefold_epoch",))))
    return flow


def timed(kind: str) -> Flow:
    """A flow of event time."""
    flow = Flow("shop")
    source = AnySource(columns=ORDERS.append(pa.field("at", pa.timestamp("us"))))
    stream = flow.source(source, uid="orders", watermarks=bounded("at", "5 seconds"))
    keyed = stream.key_by("account")
    match kind:
        case "watermarks":
            stream.sink(AnySink())
        case "windows":
            keyed.window(Tumbling("1 minute"), on="at").aggregate(uid="sums", n=count()).sink(AnySink())
        case "expiring":
            keyed.aggregate(uid="sums", n=count(), ttl=Ttl("1 day", clock="event")).sink(
                AnySink(replaces=Upsert(("account",), ("onefold_epoch",)))
            )
    return flow


def test_only_words_that_there_are_name_a_mechanism() -> None:
    with raises(ConfigError, "option-value", "'storm'", *MECHANISMS):
        check_mechanism(totals().graph(), "storm")


@pytest.mark.parametrize("mechanism", WITHOUT)
@pytest.mark.parametrize("kind", ["watermarks", "windows", "expiring"])
def test_without_epochs_that_cut_through_the_flow_there_is_no_event_time(kind: str, mechanism: Mechanism) -> None:
    graph = timed(kind).graph()
    with raises(ConfigError, "mechanism-event-time", "watermarks of orders", mechanism):
        check_mechanism(graph, mechanism)
    check_mechanism(graph, "barriers")
    check_mechanism(graph, "microbatch")
    assert "refused at its start" in timed(kind).explain(mechanism=mechanism)


@pytest.mark.parametrize("mechanism", WITHOUT)
def test_without_them_there_are_no_windows_of_processing_time_either(mechanism: Mechanism) -> None:
    flow, stream = orders()
    windowed = stream.key_by("account").window(Tumbling("1 minute", clock="processing"))
    windowed.aggregate(uid="sums", n=count()).sink(AnySink())
    with raises(ConfigError, "mechanism-event-time", "sums", mechanism):
        check_mechanism(flow.graph(), mechanism)


def test_state_of_ack_is_in_memory_alone() -> None:
    with raises(ConfigError, "mechanism-state-backend", "rocksdb", "in memory alone"):
        check_mechanism(totals().graph(), "ack", "rocksdb")
    check_mechanism(totals().graph(), "ack", "memory")
    check_mechanism(totals().graph(), "barriers", "rocksdb")


@pytest.mark.parametrize("mechanism", WITHOUT)
def test_the_newest_row_by_the_epoch_is_refused_behind_a_rebalance(mechanism: Mechanism) -> None:
    flow, stream = orders()
    counted = stream.rebalance().key_by("account").aggregate(uid="totals", orders=count())
    newest = AnySink("newest", replaces=Upsert(("account",), ("onefold_epoch",)))
    counted.rebalance().filter("orders > 1").sink(newest)
    with raises(ConfigError, "mechanism-rebalanced", "newest"):
        check_mechanism(flow.graph(), mechanism)
    check_mechanism(flow.graph(), "microbatch")
    flow, stream = orders()
    counted = stream.rebalance().key_by("account").aggregate(uid="totals", orders=count())
    counted.filter("orders > 1").sink(newest)
    check_mechanism(flow.graph(), mechanism)


def test_the_number_of_a_bundle_does_not_order_rows_that_come_by_several_subtasks() -> None:
    flow, stream = orders()
    stream.sink(AnySink("newest", replaces=Upsert(("account",), ("onefold_epoch", "id"))))
    with raises(ConfigError, "mechanism-rebalanced", "newest", "from several subtasks"):
        check_mechanism(flow.graph(), "transaction")
    check_mechanism(flow.graph(), "ack")


def test_hops_are_durable_on_a_disk_of_this_machine() -> None:
    with raises(ConfigError, "mechanism-local-disk", "s3://bucket/flows"):
        check_mechanism(totals().graph(), "transaction", checkpoint="s3://bucket/flows")
    check_mechanism(totals().graph(), "transaction", checkpoint="/srv/flows")


@dataclass(frozen=True)
class Once(AnySource):
    is_of_one_moment = True


def test_hops_refuse_a_table_that_is_read_once() -> None:
    flow = Flow("shop")
    flow.source(Once(), uid="table").sink(AnySink())
    with raises(ConfigError, "mechanism-read-once", "table"):
        check_mechanism(flow.graph(), "transaction")
    check_mechanism(flow.graph(), "barriers")


def test_a_sink_that_is_written_before_an_epoch_is_decided_is_refused_under_ack_alone() -> None:
    with raises(ConfigError, "mechanism-write-through", "cells"):
        check_sinks_shown_early("shop", "ack", ("cells",))
    check_sinks_shown_early("shop", "ack", ())
    for mechanism in MECHANISMS[:3]:
        check_sinks_shown_early("shop", mechanism, ("cells",))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_text_says_what_it_guarantees(mechanism: Mechanism) -> None:
    text = totals().explain(mechanism=mechanism)
    times = "at least once" if mechanism == "ack" else "exactly once"
    assert f"every record is reflected {times} in table" in text
    assert (f"mechanism {mechanism}: " in text) is (mechanism != "barriers")
    assert ("lost at a restart" in text) is (mechanism == "ack")


def test_the_text_says_what_a_start_refuses() -> None:
    flow, stream = orders()
    stream.sink(AnySink("cells", SinkKind.WRITE_THROUGH))
    text = flow.explain(mechanism="ack")
    assert "refused at its start: flow 'shop' writes to cells before an epoch is decided" in text


def test_on_spark_there_is_no_choice() -> None:
    with raises(ConfigError, "mechanism-on-spark", "micro-batches"):
        totals().start(None, checkpoint="c", mechanism="ack")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_sink_is_a_chain_and_no_state_is_stored_where_epochs_are_the_sinks_alone(mechanism: Mechanism) -> None:
    cut = plan(totals().graph(), mechanism=mechanism)
    assert cut.has_state is has_snapshots(mechanism)
    assert len(cut.chains) == (2 if has_snapshots(mechanism) else 3)


def facts(fingerprint: str, **more: Any) -> StoreFacts:
    at = Positions.of({"t/0": 1})
    epoch: dict[str, Any] = {"pipeline": "shop", "epoch": 1, "generation": 1, "timestamp_ms": 1, "manifest": ()}
    epoch |= {"query_id": "shop", "batch_id": 1, "fingerprint": fingerprint, "sinks": ("cells",)}
    record = EpochRecord(state=EpochState.COMPLETE, range=Range(at, at), **(epoch | more))
    return StoreFacts("store", 1, last=record)


@pytest.mark.parametrize("was", MECHANISMS)
def test_another_mechanism_than_that_of_the_last_epoch_is_refused(was: Mechanism) -> None:
    found = facts(with_workers(marked("0123456789abcdef", was), 3))
    check_same_mechanism(found, was)
    for other in MECHANISMS:
        if other != was:
            with raises(ConfigError, "mechanism-changed", f"mechanism={was!r}", repr(other)):
                check_same_mechanism(found, other)


def test_what_another_mechanism_left_is_not_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(
        names=(), facts=lambda: facts(marked("0123456789abcdef", "transaction")), recover=lambda **_: "recovered"
    )
    monkeypatch.setattr(opening, "session_of", lambda *_: nullcontext(session))
    with raises(ConfigError, "mechanism-changed", "'transaction'"):
        recover(totals().graph(), checkpoint="/nowhere")
    assert recover(totals().graph(), checkpoint="/nowhere", mechanism="transaction") == "recovered"


def test_an_epoch_says_whether_its_records_may_be_there_twice_and_goes_on_with_any_alignment() -> None:
    told = {mechanism: may_double(present(facts(marked("01", mechanism)).last, "one")) for mechanism in MECHANISMS}
    assert {mechanism: says for mechanism, says in told.items() if says} == {"ack": "mechanism ack"}
    loose = facts(marked("01", "barriers", doubles=True))
    assert may_double(present(loose.last, "one")) == "alignment at_least_once"
    check_same_mechanism(loose, "barriers")


@pytest.mark.parametrize(
    ("kind", "workers", "doubles"),
    [("aligned", 2, False), ("unaligned", 2, False), ("at_least_once", 1, False), ("at_least_once", 2, True)],
)
def test_an_epoch_is_said_to_double_only_where_channels_do_not_wait_for_each_other(
    kind: str, workers: int, doubles: bool
) -> None:
    flow, stream = orders()
    stream.rebalance().filter("amount > 0").sink(AnySink())
    settings = RunSettings(workers, "memory", 0.0, Restart(), None, Alignment(kind))
    run = FlowRun(plan(flow.graph()), *cast(Any, (None, None, settings, None, None)))
    assert run._doubles is doubles
    assert ("at least once" in flow.explain(alignment=cast(Any, kind), workers=workers)) is doubles


def test_behind_a_move_of_positions_each_mechanism_may_begin() -> None:
    for mechanism in MECHANISMS:
        check_same_mechanism(facts('{"to": "~ack"}', query_id=MOVED), mechanism)
        check_same_mechanism(StoreFacts("store", 1), mechanism)
    assert mechanism_of(facts("").last) is None  # type: ignore[arg-type]
