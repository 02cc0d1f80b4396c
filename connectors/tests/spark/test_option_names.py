"""Each interface names options as its user has set them: `KafkaSource`'s arguments, or Spark's options."""

from __future__ import annotations

import pytest
from harness.errors import raises
from pyspark.sql.pandas.types import from_arrow_schema

from onefold.core import ConfigError, OnefoldError
from onefold.sources import KafkaSource, kafka
from onefold.spark.formats import kafka_source
from onefold.spark.formats.hbase_source import OnefoldHBaseDataSource
from onefold.spark.formats.kafka_source import OnefoldKafkaDataSource
from onefold.spark.formats.postgres_format import OnefoldPostgresDataSource

BY_A_USER = {"subscribe": "orders", "kafka.bootstrap.servers": "localhost:1"}
WRONG = [
    ({"onError": "ignore"}, "onError is 'fail'", "on_error is 'fail'"),
    ({"timeoutMs": "-1"}, "timeoutMs is a time", "timeout_s is a time"),
    ({"startingOffsets": "soonest"}, "startingOffsets is earliest", "starting_offsets is earliest"),
    ({"subscribePattern": "o.*"}, "or give subscribePattern, not both", "or give topics_pattern, not both"),
    ({"kafka.bootstrap.servers": " "}, "^kafka.bootstrap.servers is missing", "^bootstrap_servers is missing"),
]


@pytest.mark.parametrize(("options", "for_spark", "for_python"), WRONG)
def test_an_option_that_is_wrong_is_named_as_it_was_set(
    options: dict[str, str], for_spark: str, for_python: str
) -> None:
    with pytest.raises(ConfigError, match=for_spark):
        OnefoldKafkaDataSource(BY_A_USER | options).schema()
    with pytest.raises(ConfigError, match=for_python):
        KafkaSource.from_options(BY_A_USER | options)


POSTGRES = {"url": "postgresql://localhost/shop", "table": "orders", "pipeline": "p", "run": "1"}
HBASE = {"servers": "localhost:1", "table": "orders", "rowKey": "id", "columns": "n = f:n integer"}


def test_the_other_formats_name_their_options_so_too() -> None:
    rows = from_arrow_schema(kafka.RAW_COLUMNS)
    with raises(ConfigError, "option-value"):
        OnefoldPostgresDataSource({"url": POSTGRES["url"], "table": "t", "statementTimeoutS": "-1"}).reader(rows)
    with raises(ConfigError, "options-conflict"):
        OnefoldPostgresDataSource(POSTGRES | {"rejectsTable": "bad"}).writer(rows, overwrite=False)
    with raises(ConfigError, "option-value"):
        OnefoldHBaseDataSource(HBASE | {"timeoutS": "-1"}).schema()
    with raises(ConfigError, "option-missing"):
        OnefoldHBaseDataSource(HBASE | {"deletedAs": "gone"}).schema()


def test_what_planners_and_readers_say_is_in_the_words_of_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> OnefoldError:
        raise ConfigError("topic-missing", "there is no topic: correct the name in topics=, or forget_topics")

    monkeypatch.setattr(kafka_source, "read", refuse)
    monkeypatch.setattr(kafka.Planner, "initial", refuse)
    stream = OnefoldKafkaDataSource(BY_A_USER).streamReader(from_arrow_schema(kafka.RAW_COLUMNS))
    with raises(ConfigError, "topic-missing", "subscribe", "forgetTopics"):
        stream.initialOffset()
    with raises(ConfigError, "topic-missing", "subscribe", "forgetTopics"):
        next(iter(stream.read(kafka_source._RangePartition(kafka.OffsetRange("orders", 0, 0, 1)))))
