"""What the demo tells of its strikes and of the recoveries from them."""

from __future__ import annotations

from typing import Any

from onefold.trials.demo.summary_table import DemoTally, StrikeReport


def _killed(at_s: float) -> StrikeReport:
    return StrikeReport("pipeline", "kill -9", "somewhere", at_s)


def _batch(
    at: float, rows: int = 10, seconds: float = 1.0, *, replayed: bool = False, warm: bool = True
) -> dict[str, Any]:
    return {"at": at, "rows": rows, "seconds": seconds, "replayed": replayed, "warm": warm}


def test_a_recovery_takes_until_the_first_batch_that_is_complete_after_the_strike() -> None:
    tally = DemoTally(
        strikes=[_killed(10.0), _killed(30.0)], outcomes=[_batch(5.0), _batch(42.5), _batch(18.0), _batch(19.0)]
    )
    assert [seconds for _, seconds in tally.recoveries()] == [8.0, 12.5]


def test_a_strike_before_any_batch_was_complete_again_has_no_recovery_of_its_own() -> None:
    tally = DemoTally(strikes=[_killed(10.0), _killed(20.0)], outcomes=[_batch(26.0)])
    assert [seconds for _, seconds in tally.recoveries()] == [None, 6.0]


def test_after_the_last_strike_there_may_be_no_batch() -> None:
    assert [seconds for _, seconds in DemoTally(strikes=[_killed(10.0)]).recoveries()] == [None]
    assert DemoTally().recoveries() == []


def test_strikes_are_counted_by_what_was_struck_and_how() -> None:
    paused = StrikeReport("pipeline", "SIGSTOP", "before its decision", 2.0)
    tally = DemoTally(strikes=[_killed(1.0), paused, StrikeReport("Postgres", "kill -9", "x", 3.0), _killed(4.0)])
    assert tally.count("pipeline", "kill -9") == 2
    assert tally.count("pipeline", "SIGSTOP") == 1
    assert tally.count("Postgres", "kill -9") == 1


def test_the_rate_is_of_written_batches_after_a_processs_first_and_none_gives_zero() -> None:
    outcomes = [_batch(1.0, 100, 50.0, warm=False), _batch(2.0, 100, 2.0), _batch(3.0, 0, 9.0, replayed=True)]
    tally = DemoTally(outcomes=outcomes)
    assert tally.rows_per_s == 50.0
    assert tally.replays_skipped == 1
    assert DemoTally().rows_per_s == 0.0
