"""What `make bench-engine` says of a record that took long."""

from __future__ import annotations

from typing import Any

from bench.live import stalls


def _epoch(number: int, ended_s: float, **steps: float) -> dict[str, Any]:
    return {"epoch": number, "ended_s": ended_s, "steps": steps}


def test_records_that_waited_together_are_one_stall_which_says_what_the_epochs_of_then_did() -> None:
    seen = [(10.0, 10.03), (11.0, 11.25), (11.1, 11.25), (12.0, 12.02), (13.0, 13.11)]
    epochs = [_epoch(1, 10.5, run=0.1), _epoch(2, 11.2, wait=0.005, run=0.02, commit=0.18), _epoch(3, 11.4, open=0.19)]
    first, second = stalls(seen, epochs)
    assert (round(first.at_s, 3), round(first.took_ms)) == (1.0, 250)
    assert first.epochs == ("epoch 2: run 20, commit 180 ms", "epoch 3: open 190 ms")
    assert round(second.took_ms) == 110 and second.epochs == ()


def test_what_took_no_longer_than_a_stall_is_none() -> None:
    assert stalls([(1.0, 1.09), (2.0, 2.05)], [_epoch(1, 1.1, run=0.1)]) == []
