"""Batches are held, let go on, and ended only between two of them."""

from __future__ import annotations

import threading
import time

import pytest
from harness.errors import raises

from onefold.core import Terminal
from onefold.spark.query_gate import DRAINED, Gate


class Batches:
    """A thread that runs batches until the gate ends it."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.done, self.code = gate, 0, ""
        self.is_wanted = True
        self.go = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while True:
                with self.gate.batch(lambda: self.is_wanted):
                    assert self.go.wait(10)
                    time.sleep(0.001)
                self.done += 1
        except Terminal as error:
            self.code = error.code

    def ended(self) -> str:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.code


def test_a_batch_that_runs_is_finished_and_the_next_one_ends_the_query() -> None:
    batches = Batches(gate := Gate())
    gate.end()
    assert not gate.wait_quiet(0.05), "the batch is still at work"
    batches.go.set()
    assert gate.wait_quiet(10)
    assert (batches.ended(), batches.done) == (DRAINED, 1)
    gate.begin()
    again = Batches(gate)
    again.go.set()
    gate.end()
    assert again.ended() == DRAINED


def test_nothing_begins_while_they_are_held() -> None:
    batches = Batches(gate := Gate())
    gate.hold()
    batches.go.set()
    assert gate.wait_quiet(10)
    done = batches.done
    time.sleep(0.05)
    assert (batches.done, gate.is_held) == (done, True)
    gate.open()
    while batches.done == done:
        time.sleep(0.001)
    gate.hold()
    gate.end()
    assert batches.ended() == DRAINED, "also while they are held"


def test_a_query_that_is_stopped_while_it_is_held_does_not_wait_for_ever() -> None:
    gate = Gate()
    gate.hold()
    batches = Batches(gate)
    batches.is_wanted = False
    assert batches.ended() == "query-stopped"


def test_spark_that_does_not_answer_while_batches_are_held_keeps_nobody_from_ending_them() -> None:
    gate, asks, answers = Gate(), threading.Event(), threading.Event()
    gate.hold()

    def ask() -> bool:
        asks.set()
        return answers.wait(10)

    def batch() -> None:
        with raises(Terminal, "query-drained", DRAINED), gate.batch(ask):
            pass

    thread = threading.Thread(target=batch, daemon=True)
    thread.start()
    assert asks.wait(10)
    ending = threading.Thread(target=gate.end, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive() and gate.wait_quiet(30)
    answers.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_that_fails_leaves_the_gate(fails: bool) -> None:
    gate = Gate()
    try:
        with gate.batch(lambda: True):
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert gate.wait_quiet(0)
