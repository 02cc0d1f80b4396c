"""Where a flow stands when it starts, and with how many workers it may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.errors import raises

from onefold.core import ConfigError, EpochRecord, EpochState
from onefold.core.positions import Positions, Range
from onefold.core.protocol.effects import StoreFacts
from onefold.engine.driver.resume_point import check_workers, with_workers

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
