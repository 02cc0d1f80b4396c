"""Which columns count offsets, and when those of a topic that was made anew would pass for old ones."""

from __future__ import annotations

import pytest
from harness.errors import raises

from onefold.core import ConfigError, Positions, Range
from onefold.core.writing.topic_identity import check_counted, counts_offsets


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        (("kafka_topic", "kafka_partition", "kafka_offset"), True),
        (("kafka_topic_id", "kafka_partition", "kafka_offset"), False),
        (("topic", "partition", "offset"), True),
        (("source_topic", "source_partition", "source_offset"), True),
        (("pipeline", "source_topic", "source_partition", "source_offset"), False),
        (("kafka_offset",), True),
        (("changed_at", "kafka_offset"), False),  # for ties alone
        (("till", "n"), False),
        ((), False),
    ],
)
def test_offsets_are_known_by_the_names_that_a_source_gives_them(columns: tuple[str, ...], counts: bool) -> None:
    assert counts_offsets(columns) is counts


def at(id: str, **offsets: int) -> Positions:
    marks = {"t/id": id} if id else {}
    return Positions.of({f"t/{name[1:]}": offset for name, offset in offsets.items()}, marks)


@pytest.mark.parametrize(
    ("start", "end", "other"),
    [
        (at("new"), at("new", p0=5), at("old", p0=3)),
        (at("new", p0=2), at("new", p0=9), at("old", p0=3)),
        (at("new", p0=9), at("new", p0=9, p1=1), at("old", p0=3)),
        (at("new"), at("new", p1=1), at("old", p0=1)),
        (at(""), at("new", p0=5), at("old", p0=3)),
    ],
)
def test_offsets_of_another_topic_of_the_name_are_refused_where_they_are_below_its_own(
    start: Positions, end: Positions, other: Positions
) -> None:
    with raises(ConfigError, "offsets-of-older-topic", "'before'"):
        check_counted("s", Range(start, end), {"before": [other]})


@pytest.mark.parametrize(
    ("start", "end", "other"),
    [
        (at("old"), at("old", p0=5), at("old", p0=3)),  # the same topic, read again
        (at("new", p0=3), at("new", p0=9), at("old", p0=3)),  # numbers go on
        (at(""), at("", p0=5), at("old", p0=3)),  # nobody knows
        (at("new"), at("new", p0=5), at("", p0=3)),
        (at("new"), at("new", p0=5), Positions.of({"u/0": 3}, {"u/id": "old"})),
        (at("new"), at("new", p0=5), at("old", p0=0)),
    ],
)
def test_offsets_that_go_on_or_are_of_the_same_topic_pass(start: Positions, end: Positions, other: Positions) -> None:
    check_counted("s", Range(start, end), {"before": [other]})
