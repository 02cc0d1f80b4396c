"""Settings of the deduplicating reader: what is wrong is said before any server is asked."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sources import IdsWithin, KafkaSource, OrderedIds


def source(deduplicate: Any) -> KafkaSource:
    return KafkaSource("orders", bootstrap_servers="localhost:9092", deduplicate=deduplicate)


@pytest.mark.parametrize(
    "ids",
    [
        None,
        OrderedIds(),
        OrderedIds(id="header:id"),
        OrderedIds(source="producer", sequence="n"),
        IdsWithin("1 hour"),
        IdsWithin("90 Minutes", id="event"),
    ],
)
def test_a_source_keeps_what_makes_its_records_the_same(ids: object) -> None:
    given = source(ids)
    assert given.deduplicate == ids
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) == hash(source(ids))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: source("key"), "option-value"),
        (lambda: OrderedIds(source="producer"), "option-missing"),
        (lambda: OrderedIds(sequence="n"), "option-missing"),
        (lambda: OrderedIds(id="key", source="producer", sequence="n"), "option-missing"),
        (lambda: OrderedIds(id="header:"), "option-value"),
        (lambda: IdsWithin("1 hour", id=""), "option-value"),
        (lambda: IdsWithin("soon"), "option-value"),
        (lambda: IdsWithin("0 hours"), "option-value"),
        (lambda: IdsWithin("1 month"), "option-value"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], code: str) -> None:
    with raises(ConfigError, code):
        make()


def test_a_flow_deduplicates_a_stream_and_refuses_a_source_that_would_not() -> None:
    with pytest.raises(ConfigError) as error:
        source(OrderedIds()).planner()
    assert error.value.code == "option-not-allowed"


def test_the_data_source_says_where_deduplication_is_to_be_had() -> None:
    with raises(ConfigError, "option-not-allowed"):
        KafkaSource.from_options({**source(None).options(), "deduplicate": "true"})
    with raises(ConfigError, "option-not-allowed"):
        source(OrderedIds()).options()
