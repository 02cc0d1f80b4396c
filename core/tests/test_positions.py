"""Positions and ranges."""

from __future__ import annotations

import json

import pytest
from harness.errors import raises
from hypothesis import given
from hypothesis import strategies as st

from onefold.core import ConfigError, InternalError, Positions, Range, Relation
from onefold.core.testing.simulator.model_checkpoint import format_offsets
from onefold.store.job.offset_json import parse_offsets

offsets = st.dictionaries(st.sampled_from(["t/0", "t/1", "u/0"]), st.integers(0, 3))


@pytest.mark.parametrize(
    ("mine", "theirs", "relation"),
    [
        ({}, {}, Relation.SAME),
        ({"t/0": 0}, {}, Relation.SAME),
        ({"t/0": 1}, {}, Relation.AHEAD),
        ({}, {"t/0": 1}, Relation.BEHIND),
        ({"t/0": 2, "t/1": 1}, {"t/0": 1, "t/1": 2}, Relation.BEHIND),
        ({"t/0": 2, "t/1": 2}, {"t/0": 1, "t/1": 2}, Relation.AHEAD),
        ({"#0": "a"}, {"#0": "a"}, Relation.SAME),
        ({"#0": "a"}, {"#0": "b"}, Relation.UNORDERED),
        ({"#0": "a"}, {}, Relation.UNORDERED),
        ({"t/0": 2, "t/id": "A"}, {"t/0": 1, "t/id": "A"}, Relation.AHEAD),
        ({"t/0": 2, "t/id": "A"}, {"t/0": 2}, Relation.SAME),  # from before ids were known
        ({"t/0": 2, "t/id": "A"}, {"t/0": 2, "t/id": "B"}, Relation.UNORDERED),
        ({"t/0": 2, "t/epochs": "0:1"}, {"t/0": 2, "t/epochs": "0:2"}, Relation.SAME),
    ],
)
def test_the_relation_of_positions(
    mine: dict[str, int | str], theirs: dict[str, int | str], relation: Relation
) -> None:
    assert Positions.from_flat(mine).relation_to(Positions.from_flat(theirs)) is relation


@given(offsets, offsets)
def test_same_and_behind_agree_with_a_partition_by_partition_comparison(a: dict[str, int], b: dict[str, int]) -> None:
    behind = any(a.get(k, 0) < b.get(k, 0) for k in a | b)
    ahead = any(a.get(k, 0) > b.get(k, 0) for k in a | b)
    expected = Relation.BEHIND if behind else Relation.AHEAD if ahead else Relation.SAME
    assert Positions.of(a).relation_to(Positions.of(b)) is expected
    assert Range(Positions.of(a), Positions.of(b)).is_empty == (not behind and not ahead)


@given(offsets)
def test_json_there_and_back_is_the_same(a: dict[str, int]) -> None:
    assert Positions.from_json(Positions.of(a).to_json()) == Positions.of(a)


def test_unsorted_positions_cannot_be_made() -> None:
    with pytest.raises(InternalError):
        Positions((("b", 1), ("a", 1)))


def test_the_offset_log_of_kafka_sources_becomes_topic_and_partition() -> None:
    found = parse_offsets(['{"orders": {"1": 3, "0": 17}}', None, '{"bills": {"0": 2}}'])
    assert found == Positions.of({"bills/0": 2, "orders/0": 17, "orders/1": 3})
    assert found.topics() == {"bills": {0: 2}, "orders": {0: 17, 1: 3}}
    assert format_offsets(found) == '{"bills":{"0":2},"orders":{"0":17,"1":3}}'


def test_what_tells_a_topic_from_another_of_its_name_goes_along_and_is_no_position() -> None:
    text = '{"orders": {"0": 17, "epochs": "0:5", "id": "Sx2"}}'
    found = parse_offsets([text])
    assert found.items == (("orders/0", 17),)
    assert found.topic_ids() == {"orders": "Sx2"}
    assert Positions.from_json(found.to_json()).marks == found.marks
    assert json.loads(format_offsets(found)) == json.loads(text)
    assert found.differences(Positions.from_flat({"orders/0": 17, "orders/id": "new"})) == (
        "orders is the topic Sx2, not new"
    )
    assert parse_offsets(['{"a": {"id": "x"}}', '{"a": {"0": "x"}}']).marks == ()  # other sources' own


def test_the_offset_log_of_other_sources_keeps_its_path() -> None:
    found = parse_offsets(['{"logOffset": 4}', '"token"', "[1, 2]", "7"])
    assert found == Positions.of({"#0/logOffset": 4, "#1": "token", "#2": "[1, 2]", "#3": 7})
    assert found.topics() == {}


def test_two_sources_that_read_one_topic_are_refused() -> None:
    with raises(ConfigError, "topic-read-twice", "'t/0'"):
        parse_offsets(['{"t": {"0": 1}}', '{"t": {"0": 2}}'])


def test_differences_name_the_partitions_and_stop_at_the_limit() -> None:
    mine, theirs = Positions.of({f"t/{n}": n + 1 for n in range(8)}), Positions()
    assert mine.differences(theirs, limit=2) == "t/0: 1, not 0; t/1: 2, not 0 and 6 more"
    assert mine.differences(mine) == ""
