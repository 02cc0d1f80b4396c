"""Dead letters of records that are too large for one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from onefold.core.writing.dead_letters import BAD_COLUMNS
from onefold.sources.formats.values import BadValue, TooManyBad, separate
from onefold.sources.kafka.bad_records import cut_to_fit
from onefold.sources.kafka.fetching.fetched_records import LETTER_BYTES_MAX
from onefold.sources.kafka.formats.dispatch import TextParser

LARGE = b"x" * 1_000_000


def letter(size: int | None = 0, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(BAD_COLUMNS.names) | {"reason": "why", **more}
    (cut,) = cut_to_fit(pa.RecordBatch.from_pylist([row], schema=BAD_COLUMNS), [size]).to_pylist()
    return cut


def length(cut: dict[str, Any]) -> int:
    headers = cut["headers"] or ()
    return (
        len(cut["key"] or b"") + len(cut["value"] or b"") + sum(len(h["key"]) + len(h["value"] or b"") for h in headers)
    )


@pytest.mark.parametrize(
    "given",
    [
        {"value": LARGE},
        {"key": LARGE},
        {"headers": [{"key": "h", "value": LARGE}]},
        {"headers": [{"key": "n" * 1_000_000, "value": None}]},
        {"headers": [{"key": "", "value": None}] * 60_000},
        {"key": LARGE, "value": LARGE, "headers": [{"key": "small", "value": b"1"}, {"key": "large", "value": LARGE}]},
    ],
)
def test_a_record_that_is_too_large_is_cut_to_what_a_topic_takes_and_says_so(given: dict[str, Any]) -> None:
    cut = letter(**given)
    assert length(cut) <= LETTER_BYTES_MAX + 200
    mark = cut["headers"][-1]
    told = json.loads(mark["value"])
    assert mark["key"] == "onefold.cut" and told["bytes"] > LETTER_BYTES_MAX >= told["kept"]
    assert cut["reason"] == f"cut to {told['kept']} of {told['bytes']} bytes: why"


def test_a_record_that_fits_is_kept_byte_by_byte() -> None:
    given = {"key": b"k", "value": b"v" * (LETTER_BYTES_MAX - 1), "headers": None}
    assert letter(**given) == dict.fromkeys(BAD_COLUMNS.names) | {"reason": "why", **given}


def test_what_came_here_cut_says_how_large_it_was_where_anybody_knows() -> None:
    assert letter(size=5_000_000, value=b"x" * LETTER_BYTES_MAX)["reason"].endswith("of 5000000 bytes: why")
    cut = letter(size=None)
    assert cut["reason"] == "cut to 0 of an unknown number of bytes: why" and cut["value"] is None


def test_values_that_are_known_to_be_bad_are_never_parsed_and_stand_in_their_places() -> None:
    values = [b"a", b"\xff", b"b", b"\xff", b"c"]
    found = separate(values, TextParser(pa.schema([("value", pa.string())])), 2, {1: "known\n"})
    assert [row for batch in found.rows for row in batch["value"].to_pylist()] == ["a", "b", "c"]
    assert found.bad[0] == BadValue(1, "known\\n") and found.bad[1].index == 3
    with pytest.raises(TooManyBad):
        separate(values, TextParser(pa.schema([("value", pa.string())])), 0, {1: "known"})
