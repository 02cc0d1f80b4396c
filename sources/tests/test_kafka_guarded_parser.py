"""Parsers in a process of their own: the values that end it, among others. No server."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from harness.errors import raises

from onefold.core.errors import Retriable
from onefold.sources.formats import guarded_parser
from onefold.sources.formats.csv import CsvParser
from onefold.sources.formats.guarded_parser import in_task
from onefold.sources.formats.json import JsonParser
from onefold.sources.formats.values import Parser, Values, separate

IDS = pa.schema({"id": pa.int64()})


class Ending:
    """A parser that is ended by a signal at a value with that text."""

    def __init__(self, text: bytes, number: signal.Signals) -> None:
        self._parser, self._text, self._number = JsonParser(IDS), text, number

    def parse(self, values: Values) -> pa.RecordBatch:
        if any(value is not None and self._text in value for value in values):
            os.kill(os.getpid(), self._number)
        return self._parser.parse(values)


def test_values_that_end_the_process_are_found_among_good_and_bad_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_FAILPOINT_DEADLY", "deadly")
    deadly, bad = {0, 70, 71, 499}, {3, 69, 300}
    values = [b'{"x":"deadly"}' if i in deadly else b'{"id":"x"}' if i in bad else b'{"id":%d}' % i for i in range(500)]
    found = separate(values, in_task(JsonParser(IDS), guarded=True), 10)
    assert [n for batch in found.rows for n in batch.column("id").to_pylist()] == [
        i for i in range(500) if i not in deadly | bad
    ]
    fatal = "the library that parses it ends its process (SIGSEGV)"
    said = [
        (i, fatal if i in deadly else "field 'id' (bigint): id is a JSON string, not a number")
        for i in sorted(deadly | bad)
    ]
    assert [(each.index, each.reason) for each in found.bad] == said


@pytest.mark.parametrize(("parser", "value"), [(JsonParser(IDS), b'{"id":1}'), (CsvParser(IDS, ","), b"1")])
def test_a_value_that_can_be_read_when_it_is_tried_again_is_an_open_question(
    parser: Parser, value: bytes, tmp_path: Path
) -> None:
    class EndsAtFirst:
        def parse(self, values: Values) -> pa.RecordBatch:
            if not (mark := tmp_path / "ended").exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGSEGV)
            return parser.parse(values)

    found = separate([value], guarded_parser.GuardedParser(EndsAtFirst()), 1)
    assert [(bad.index, bad.is_permanent) for bad in found.bad] == [(0, False)]
    assert "fails by chance" in found.bad[0].reason


def test_a_process_that_somebody_else_ends_is_no_fault_of_a_value() -> None:
    with raises(Retriable, "parser-died"):
        separate([b'{"id":1}', b'{"x":"kill"}'], guarded_parser.GuardedParser(Ending(b"kill", signal.SIGKILL)), 1)


def test_a_process_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_parser, "TIME_MAX_S", 0.5)
    began_s = time.monotonic()
    with raises(Retriable, "parser-timeout"):
        separate([b'{"x":"stop"}'], guarded_parser.GuardedParser(Ending(b"stop", signal.SIGSTOP)), 1)
    assert time.monotonic() - began_s < 10
