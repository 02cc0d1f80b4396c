"""Settings of the Kafka source: what is wrong is said, with the way out, before any server is asked."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from harness.errors import raises

from onefold.core.errors import ConfigError
from onefold.sources import KafkaSource

JSON = {"format": "json", "columns": "position"}


def source(*topics: str, **more: Any) -> KafkaSource:
    return KafkaSource(topics or ("orders",), **{"bootstrap_servers": "localhost:9092", **more})


RECORD = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'


def test_a_source_pickles_and_comes_back_from_its_options() -> None:
    given = source(
        "orders",
        "returns",
        format="json",
        schema="id long",
        columns=["headers", "key", "position"],
        on_error="skip",
        bad_records_max=7,
        starting_offsets={"orders": {"0": 17}, "returns": {"0": -1}},
        max_offsets_per_trigger=5000,
        client_config={"security.protocol": "SSL"},
        timeout_s=12.5,
    )
    assert pickle.loads(pickle.dumps(given)) == given
    assert KafkaSource.from_options(given.options()) == given


def test_an_option_that_is_left_out_is_its_default() -> None:
    given = source(client_config={"client.id": "x"}, max_bytes_per_trigger=9, commit_to_group="g", forget_topics="gone")
    options = given.options()
    assert options == {
        "subscribe": "orders",
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.client.id": "x",
        "maxBytesPerTrigger": "9",
        "commitToGroup": "g",
        "forgetTopics": "gone",
    }
    assert KafkaSource.from_options({name.upper(): value for name, value in options.items()}) == given


def test_a_nested_field_may_have_the_name_of_a_positions_column() -> None:
    given = source(**JSON, schema="d decimal(12, 2), s struct<kafka_topic: string, m: map<string, int>>")
    assert given.columns == ("position",)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format": "jsn"}, "did you mean 'json'"),
        ({"schema": "id long"}, "format='json'"),
        ({"format": "csv", "schema": "infer"}, "no names or types"),
        ({"csv_delimiter": ";"}, "goes with format='csv'"),
        ({"format": "csv", "csv_delimiter": ";;"}, "one ASCII character"),
        ({"format": "json", "columns": ["keys"]}, "'keys' is not"),
        ({"format": "json", "columns": ["key"], "schema": "kafka_key string"}, "has a column 'kafka_key'"),
        ({"format": "json", "on_error": "ignore"}, "'fail' or 'dead_letter' or 'skip'"),
        ({"record_bytes_max": 0}, "how many bytes a record may have"),
        ({"record_bytes_max": 1 << 31}, "how many bytes a record may have"),
        ({"format": "json", "bad_records_max": -1}, "0 or more"),
        ({"format": "avro"}, "needs avro_schema"),
        ({"format": "avro", "schema": "id long"}, "those of avro_schema"),
        ({"format": "avro", "avro_schema": "{"}, "no Avro schema"),
        ({"format": "avro", "avro_schema": '"long"'}, "must be a record's"),
        ({"format": "avro", "schema_registry": {"user": "x"}}, "'url' among them"),
        ({"avro_schema": "{}"}, "goes with format='avro'"),
        ({"schema_registry": "http://localhost:8081"}, "goes with format='avro'"),
        ({"columns": "position"}, "format='raw' has topic, partition and offset"),
        ({**JSON, "schema": "id long, Kafka_Offset long"}, "has a column 'Kafka_Offset'"),
        ({**JSON, "schema": "`kafka_topic`: string"}, "has a column 'kafka_topic'"),
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"max_offsets_per_trigger": 0}, "max_offsets_per_trigger is a whole number from 1"),
        ({"timeout_s": 0}, "timeout"),
        ({"starting_offsets": "erliest"}, "did you mean 'earliest'"),
        ({"starting_offsets": "{"}, "starting_offsets is earliest, latest, a time"),
        ({"starting_offsets": "[1]"}, "starting_offsets is earliest, latest, a time"),
        ({"starting_offsets": {"order": {"0": 1}}}, "did you mean 'orders'"),
        ({"starting_offsets": {"orders": {"x": 1}}}, "orders/x"),
        ({"starting_offsets": {"orders": {"0": "1"}}}, "not '1'"),
        ({"starting_offsets": {"orders": {"0": -3}}}, "not -3"),
        ({"client_config": {"enable.auto.commit": "true"}}, "checkpoint and the ledger"),
        ({"client_config": {"auto.offset.reset": "latest"}}, "must fail, not jump"),
        ({"client_config": {"group.id": "g"}}, "never in a consumer group"),
        ({"client_config": {"isolation.level": "serializable"}}, "read_committed or read_uncommitted"),
        ({"client_config": {"sasl.jaas.config": "x"}}, "sasl.username"),
        ({"client_config": {"fetch.min.bytes": 1}}, "texts"),
    ],
)
def test_wrong_settings_say_what_to_do(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(**more)
    assert message in str(caught.value)


@pytest.mark.parametrize("topics", [("",), ("a,b",), ("a", "a"), (" a",)])
def test_wrong_topics_are_refused(topics: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        source(*topics)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("maxOffsetPerTrigger", "did you mean 'maxOffsetsPerTrigger'"),
        ("failOnDataLoss", "always fail with DataLoss"),
        ("subscribePattern", "name the topics"),
        ("nonsense", "known are"),
        ("kafka.group.id", "no consumer group"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_name(option: str, message: str) -> None:
    options = {"subscribe": "orders", "kafka.bootstrap.servers": "localhost:9092", option: "1"}
    with pytest.raises(ConfigError) as caught:
        KafkaSource.from_options(options)
    assert message in str(caught.value)


def test_a_misspelt_librdkafka_setting_is_refused_with_the_nearest_name() -> None:
    with raises(ConfigError, "kafka-setting-refused"):
        source(client_config={"security.protocl": "SSL"}).broker()


def test_the_source_package_knows_nothing_of_spark() -> None:
    code = (
        "import sys, onefold.sources; assert 'confluent_kafka' not in sys.modules;"
        "from onefold.sources import KafkaSource;"
        "assert not any(m.startswith(('pyspark', 'pandas')) for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_secrets_travel_as_options_whose_values_spark_leaves_out_of_its_plans() -> None:
    secrets = {"ssl.key.pem": "a", "sasl.oauthbearer.config": "b", "sasl.password": "c", "ssl.keystore.password": "d"}
    registry = {"url": "http://r", "basic.auth.user.info": "u:e"}
    source = KafkaSource(
        "t", bootstrap_servers="b:1", client_config=secrets, format="avro", avro_schema=RECORD, schema_registry=registry
    )
    options = source.options()
    for name, value in options.items():
        if value in ("a", "b", "c", "d", "u:e"):
            assert re.search("(?i)secret|password|token", name), name  # Spark's spark.redaction.regex
    assert KafkaSource.from_options(options) == source
    by_hand = {name.removeprefix("secret."): value for name, value in options.items()}
    assert KafkaSource.from_options(by_hand) == source
