"""Where a flow stands when it starts, and with how many workers it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from harness.errors import raises

from onefold.core import CheckpointMismatch, Committable, ConfigError, EpochRecord, EpochState, SinkKind
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.core.protocol.epoch import Started
from onefold.engine.driver.resume_point import ResumePoint, check_workers, resume_point, with_workers

SPAN = Range(Positions.of({"t/0": 0}), Positions.of({"t/0": 5}))


def begun(fingerprint: str, write_through: tuple[str, ...] = ("cells",)) -> StoreFacts:
    record = EpochRecord(
        pipeline="shop",
        epoch=7,
        generation=1,
        range=SPAN,
        state=EpochState.OPEN,
        timestamp_ms=1,
        manifest=(),
        query_id="shop",
        batch_id=7,
        fingerprint=fingerprint,
        sinks=("cells",),
        write_through=write_through,
    )
    return StoreFacts("store", 1, unfinished=(record,))


@pytest.mark.parametrize("suffix", ["", "/files"])
def test_an_epoch_that_was_begun_in_order_runs_again_with_as_many_workers_alone(suffix: str) -> None:
    facts = begun(with_workers("0123456789abcdef", 3) + suffix)
    check_workers(facts, 3)
    with raises(ConfigError, "worker-count", "workers=2", "workers=3"):
        check_workers(facts, 2)


def test_any_other_epoch_runs_with_any_number_of_workers() -> None:
    check_workers(begun("0123456789abcdef"), 2)
    given_up = begun(with_workers("0123456789abcdef", 3))
    check_workers(replace(given_up, unfinished=()), 2)


def last_of(*handles: str) -> StoreFacts:
    (record,) = begun("job").unfinished
    made = tuple(Committable("state", SinkKind.TWO_PHASE, handle, 1, 7, 0) for handle in handles)
    return StoreFacts("store", 1, last=replace(record, state=EpochState.COMPLETE, manifest=made))


STARTED = cast(Started, cast(Any, None))


def test_a_flow_goes_on_with_what_was_in_flight_also_where_its_operators_keep_nothing() -> None:
    found = resume_point(last_of("1/7-a.flight"), STARTED, lambda _: (), has_state=False)
    assert found.in_flight and found.handles == ("1/7-a.flight",)
    none = resume_point(last_of(), STARTED, lambda _: (), has_state=False)
    assert not none.in_flight and none.handles == ()
    assert not ResumePoint.after(cast(EpochRecord, last_of("1/7-a").last)).in_flight


@pytest.mark.parametrize("handles", [(), ("1/7-a.flight",)])
def test_flights_alone_are_no_state_of_operators(handles: tuple[str, ...]) -> None:
    with raises(CheckpointMismatch, "state-missing"):
        resume_point(last_of(*handles), STARTED, lambda _: ())
