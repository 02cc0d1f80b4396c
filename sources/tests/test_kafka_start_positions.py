"""Starts, offset snapshots and settings of the Kafka source, as far as no server is asked."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.core.positions import Positions
from onefold.sources import KafkaSource
from onefold.sources.kafka import Planner, wanted_positions
from onefold.sources.kafka.offsets import OffsetSnapshot
from onefold.sources.kafka.planning.start_positions import offsets_at, parse
from onefold.sources.kafka.planning.subscription import Subscription

SERVERS = "localhost:9092"


def source(*topics: str, **more: Any) -> KafkaSource:
    return KafkaSource(topics, **{"bootstrap_servers": SERVERS, **more})


def test_the_narrower_start_counts_and_words_numbers_and_times_may_be_mixed() -> None:
    start = parse(
        "startingOffsets",
        '{"a": "latest", "b": {"0": 17, "1": "earliest", "2": "2026-11-20T01:00:00+01:00",'
        ' "id": "x", "epochs": "0:1"}}',
        Subscription(("a", "b")),
    )
    assert [start.place((topic, number)) for topic, number in (("a", 7), ("b", 0), ("b", 1))] == [-1, 17, -2]
    assert start.place(("b", 2)) == datetime(2026, 11, 20, tzinfo=UTC)
    assert start.place(("b", 3)) is None
    assert start.ids == {"b": "x"}


def test_positions_of_a_forgotten_topic_stay_with_the_others() -> None:
    frozen = {"a": {"0": 17}, "gone": {"0": 5, "id": "x"}}
    given = source("a", forget_topics=["gone"], starting_offsets=json.dumps(frozen))
    again = KafkaSource.from_options(given.options())
    assert json.loads(again.starting_offsets) == frozen
    start = parse("startingOffsets", again.starting_offsets, again.subscription)
    assert (start.partitions, start.ids) == ({("a", 0): 17}, {})


def test_times_come_as_datetimes_texts_and_milliseconds() -> None:
    at = datetime(2026, 11, 20, 1, 2, 3, 456000, tzinfo=timezone(timedelta(hours=1)))
    by_partition = source("a", starting_offsets={"a": {"0": at}})
    assert by_partition == source("a", starting_offsets={"a": {"0": at.isoformat()}})
    options = {"subscribe": "a", "kafka.bootstrap.servers": SERVERS}
    ms = round(at.timestamp() * 1000)
    given = KafkaSource.from_options({**options, "startingOffsetsByTimestamp": f'{{"a": {{"0": {ms}}}}}'})
    assert given == source("a", starting_offsets='{"a": {"0": "2026-11-20T00:02:03.456+00:00"}}')
    for wrong in ({"startingTimestamp": "soon"}, {"startingOffsetsByTimestamp": "[1]"}):
        with raises(ConfigError, "option-value"):
            KafkaSource.from_options({**options, **wrong})
    with raises(ConfigError, "options-conflict"):
        KafkaSource.from_options({**options, "startingOffsets": "latest", "startingTimestamp": "1"})


@pytest.mark.parametrize(
    ("topics", "more", "message"),
    [
        ((), {}, "at least one topic"),
        (("a",), {"topics_pattern": "a.*"}, "not both"),
        ((), {"topics_pattern": "a(.*"}, "regular expression"),
        ((), {"topics_pattern": "a.*", "starting_offsets": {"b": "latest"}}, "not subscribed"),
        (("a",), {"starting_offsets": "2026-11-20"}, "has no zone"),
        (("a",), {"starting_offsets": {"a": {"0": "soonest"}}}, "not 'soonest'"),
        (("a",), {"max_bytes_per_trigger": 0}, "max_bytes_per_trigger is a whole number"),
        (("a",), {"max_offsets_per_second": 0.5}, "max_offsets_per_second is a whole number"),
        (("a",), {"commit_to_group": " "}, "consumer group"),
        (("a",), {"forget_topics": ["a"]}, "take it out of one"),
    ],
)
def test_wrong_settings_say_what_to_do(topics: tuple[str, ...], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(*topics, **more)
    assert message in str(caught.value)


def test_a_pattern_goes_through_options_and_never_means_kafkas_own_topics() -> None:
    given = source(topics_pattern=".*orders", max_bytes_per_trigger=1000, commit_to_group="shown", forget_topics=["x"])
    assert KafkaSource.from_options(given.options()) == given
    assert pickle.loads(pickle.dumps(given)) == given
    assert [topic for topic in ("orders", "my-orders", "orders2", "__orders") if given.subscription.covers(topic)] == [
        "orders",
        "my-orders",
    ]


def test_positions_of_a_forgotten_topic_are_its_sources_and_read_no_more() -> None:
    for given in (source("orders", forget_topics=["old"]), source(topics_pattern=".*", forget_topics=["old"])):
        assert [(given.covers(f"{topic}/0"), given.reads(f"{topic}/0")) for topic in ("orders", "old")] == [
            (True, True),
            (True, False),
        ]


def test_an_offset_snapshot_comes_back_from_the_positions_that_are_kept_of_it() -> None:
    at = OffsetSnapshot({("a", 10): 5, ("a", 2): 7, ("b", 0): 1}, {"a": "A"}, {("a", 10): 3, ("a", 2): 1})
    assert at.positions().items == (("a/10", 5), ("a/2", 7), ("b/0", 1))
    assert at.positions().marks == (("a/epochs", "2:1 10:3"), ("a/id", "A"))
    assert OffsetSnapshot.of(at.positions()) == at


def test_a_change_of_leader_alone_is_no_new_data() -> None:
    at = OffsetSnapshot({("a", 0): 5, ("a", 1): 5}, {}, {("a", 0): 1, ("a", 1): 1})
    seen = OffsetSnapshot({("a", 0): 5, ("a", 1): 9}, {"a": "A"}, {("a", 0): 2, ("a", 1): 2})
    assert at.moved_to({("a", 0): 5, ("a", 1): 5}, seen).positions().to_json() == at.positions().to_json()
    assert at.moved_to(seen.offsets, seen) == OffsetSnapshot(seen.offsets, {"a": "A"}, {("a", 0): 1, ("a", 1): 2})


def test_a_position_never_keeps_the_leader_epoch_of_an_older_one() -> None:
    at = OffsetSnapshot({("a", 0): 5}, {}, {("a", 0): 1})
    assert at.moved_to({("a", 0): 9}, OffsetSnapshot({("a", 0): 9})).epochs == {}  # no broker said


def test_a_planner_pickles_with_what_it_was_frozen_at() -> None:
    planner = Planner(source("a"), OffsetSnapshot({("a", 0): 5}))
    assert pickle.loads(pickle.dumps(planner)).initial() == OffsetSnapshot({("a", 0): 5})


def test_a_time_before_all_records_is_none_of_the_brokers_negative_ones() -> None:
    class Broker:
        def at_times(self, times: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
            assert times == {("a", 0): 0}
            return {("a", 0): 3}

    broker: Any = Broker()
    for at in ("1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"):
        places = {("a", 0): parse("startingOffsets", at, Subscription(("a",))).place(("a", 0))}
        assert offsets_at(broker, places, {("a", 0): 3}, {("a", 0): 9}) == {("a", 0): 3}


@pytest.mark.parametrize(
    "text",
    [
        *("17", "a:0", "a:x=1", "a=5", "at=soon", "at=2026-11-20T00:00:00", "ledger", ":0=1"),
        *("a:0=-1", "a:0=²", "a:²=1", "a:0=" + "9" * 5000, "a:" + "9" * 5000 + "=1"),
    ],
    ids=lambda text: text[:20],
)
def test_positions_that_say_nothing_are_refused_before_any_broker_is_asked(text: str) -> None:
    with raises(ConfigError, "option-value"):
        wanted_positions(source("a"), Positions.of({"a/0": 1}), ["earliest", text])


def test_positions_of_a_topic_that_is_not_read_are_refused() -> None:
    with raises(ConfigError, "topic-not-subscribed", "'b'"):
        wanted_positions(source("a"), Positions.of({"a/0": 1}), ["b:0=1"])
