"""What a Kafka sink is told, what it refuses, and the names that it leaves on the brokers."""

from __future__ import annotations

import pickle
import ssl
import uuid
from typing import Any

import pytest
from harness.errors import raises

from onefold.clients.kafka.broker_connection import Security
from onefold.clients.kafka.client_roles import PRODUCER
from onefold.core import ConfigError, SinkKind, TaskId
from onefold.sinks import KafkaSink
from onefold.sinks.kafka.naming import Handle, Names, ledger_topic

SERVERS = "localhost:9092"
TASK = TaskId("p", 1, 2, 3, uuid.uuid4())


def sink(**more: Any) -> KafkaSink:
    return KafkaSink("orders", bootstrap_servers=SERVERS, **more)


def test_each_pipeline_has_a_topic_of_its_own_and_kafka_takes_its_name() -> None:
    names = ["orders", "orders_eu", "orders.eu", "orders-eu", "Bestellungen-ü", "-x", "x" * 100, "ü" * 100]
    topics = [ledger_topic(name) for name in names]
    assert topics[:2] == ["onefold_progress-orders", "onefold_progress-orders_eu"]
    assert len({topic.replace(".", "_") for topic in topics}) == len(names)
    assert all(len(topic) <= 249 and topic.isascii() and "." not in topic for topic in topics)


def test_a_sink_travels_and_promises_the_same_where_it_arrives() -> None:
    there = pickle.loads(pickle.dumps(sink(key="id", client_config={"compression.type": "zstd"})))
    promise = there.guarantee()
    assert promise == sink().guarantee()
    assert (promise.kind, promise.atomic_epoch, promise.prepared_s) == (SinkKind.TWO_PHASE, False, 900)
    assert any("lasts 300 s at most" in condition for condition in promise.conditions)
    assert there.name == "orders" and there.store_url() is None
    with raises(ConfigError, "sink-not-opened"):
        there.writer(TASK)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"delivery": "sometimes"}, "option-value"),
        ({"ledger": "orders"}, "ledger-is-target"),
        ({"transaction_timeout_s": 0}, "option-value"),
        ({"outage_max_s": 900}, "option-value"),
        ({"timeout_s": 0}, "option-value"),
        ({"transactional_id_prefix": "a/b"}, "option-value"),
        ({"transactional_id_prefix": "x" * 65}, "option-value"),
        ({"client_config": {"acks": "1"}}, "option-not-allowed"),
        ({"client_config": {"transactional.id": "x"}}, "option-not-allowed"),
        ({"client_config": {"transaction.timeout.ms": "1"}}, "option-not-allowed"),
        ({"client_config": {"linger.ms": 5}}, "option-value"),
        ({"client_config": {"sasl.jaas.config": "x"}}, "option-not-allowed"),
        ({"client_config": {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}}, "option-value"),
        ({"client_config": {"security.protocol": "SASL_SSL"}}, "option-value"),
        ({"client_config": {"security.protocol": "ssl", "ssl.keystore.location": "x"}}, "option-not-allowed"),
        ({"client_config": {"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}}, "tls-files-unusable"),
        ({"client_config": {"security.protocol": "tls"}}, "option-value"),
        ({"format": "raw", "key": "id"}, "options-conflict"),
    ],
)
def test_settings_that_would_break_the_guarantee_or_make_no_sense_are_refused(
    settings: dict[str, Any], code: str
) -> None:
    with raises(ConfigError, code):
        sink(**settings)


def test_a_pipelines_own_ledger_topic_is_no_target() -> None:
    own = KafkaSink("onefold_progress-orders", bootstrap_servers="localhost:1", timeout_s=1)
    with raises(ConfigError, "ledger-is-target"):
        own.recover("orders")


def test_security_that_our_own_requests_lack_is_refused_in_every_mode_and_no_other_mode_is_named_as_a_way_out() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    for more in ({}, {"delivery": "keyed", "id": "id"}):
        with raises(ConfigError, "option-value") as raised:
            sink(client_config=given, **more)
        assert "keyed" not in str(raised.value) and "certificates" in str(raised.value)


def test_librdkafkas_settings_pass_through_and_ours_stand() -> None:
    given = {"linger.ms": "1", "security.protocol": "ssl", "partitioner": "random"}
    config = PRODUCER.config(SERVERS, given, {"transactional.id": "x"})
    assert config.items() >= {**given, "acks": "all", "transactional.id": "x", "bootstrap.servers": SERVERS}.items()
    assert "linger.ms" not in PRODUCER.admin_config(SERVERS, given)


@pytest.mark.parametrize(
    ("more", "checks_host", "verifies"),
    [
        ({}, True, True),
        ({"ssl.endpoint.identification.algorithm": "none"}, False, True),
        ({"enable.ssl.certificate.verification": "false"}, False, False),
    ],
)
def test_the_same_tls_settings_hold_for_our_own_requests(
    more: dict[str, str], checks_host: bool, verifies: bool
) -> None:
    context = Security.of({"security.protocol": "ssl", **more}).context()
    assert context is not None and context.check_hostname is checks_host
    assert context.verify_mode is (ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE)


def test_transactional_ids_are_bounded_and_say_whose_they_are() -> None:
    names = Names("prefix", "p/ä" * 100, "größe" * 100)
    name = names.transactional_id(2**40, uuid.uuid4(), 123456)
    assert len(name.encode()) <= 255 and name.startswith(names.ids) and name.count("/") == 5
    assert names.generation(name) == 2**40
    for other in (
        names.ledger,
        names.probe,
        name + "x",
        Names("prefix", "p", "s").transactional_id(1, uuid.uuid4(), 0),
    ):
        assert names.generation(other) is None
    assert not Names("a", "p", "s2").ids.startswith(Names("a", "p", "s").ids)
    handle = Handle(name, 2**60, 32767)
    assert Handle.parse(str(handle)) == handle
