"""What `bench.windows` holds the contestants to."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bench.windows.records import GAP_MS, SIZE_MS, SLIDE_MS, START_MS, records, windows

ROWS, KEYS = 3_000, 40
MORE_ROWS, MORE_KEYS = 120_000, 40_000
"""12 seconds, in which a key has three records: sessions end between some."""


def row_by_row(kind: str, rows: int, keys: int) -> Counter[tuple[int, int, int]]:
    """The sums by key, start and end."""
    found: Counter[tuple[int, int, int]] = Counter()
    last: dict[int, tuple[int, int, int]] = {}
    made = [(at_ms, json.loads(value)) for value, _, _, at_ms in records(rows, keys)]
    for at_ms, record in sorted(made, key=lambda each: each[0]):
        account, amount = record["account"], record["amount"]
        if account < 0:
            continue
        if kind == "session":
            before = last.get(account, (account, at_ms, at_ms))
            begins = before[1] if at_ms <= before[2] else at_ms
            last[account] = (account, begins, at_ms + GAP_MS)
            found[last[account]] = amount + (found.pop(before, 0) if begins == before[1] else 0)
            continue
        slide_ms = SIZE_MS if kind == "tumbling" else SLIDE_MS
        for start_ms in range(at_ms // slide_ms * slide_ms, at_ms - SIZE_MS, -slide_ms):
            found[account, start_ms, start_ms + SIZE_MS] += amount
    return found


@pytest.mark.parametrize("kind", ["tumbling", "sliding", pytest.param("session", marks=pytest.mark.slow)])
def test_the_windows_of_the_records_are_those_that_a_loop_over_them_finds(kind: str) -> None:
    rows, keys = (MORE_ROWS, MORE_KEYS) if kind == "session" else (ROWS, KEYS)
    found = windows(kind, rows, keys).ordered().T.tolist()
    assert {(account, start, end): total for account, start, end, total in found} == row_by_row(kind, rows, keys)
    assert len({account for account, *_ in found}) < len(found)


def test_no_record_is_5_seconds_older_than_one_before_it_in_its_partition_and_each_partition_ends_late() -> None:
    newest: dict[int, int] = {}
    for _, _, partition, at_ms in records(ROWS, KEYS):
        assert at_ms > newest.get(partition, START_MS) - 5_000
        newest[partition] = max(newest.get(partition, at_ms), at_ms)
    assert min(newest.values()) > START_MS + SIZE_MS * 30
