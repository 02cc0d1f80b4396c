"""`onefold verify --expect`: what flows with state have written, held against SQL that is none of their code."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from harness.definitions import named, piped
from harness.errors import raises
from harness.kafka.topics import in_order
from harness.support import Rig
from typer.testing import CliRunner

from onefold.cli.main import app
from onefold.core import BadRecord, ConfigError, Sink
from onefold.core.invariants import Comparison
from onefold.flow import Flow, Tumbling, bounded, count, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.spark.verify.kafka_records import javas_partition
from onefold.spark.verify.verification import verify

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = "id long, account long, amount decimal(12,2), rate double, at timestamp"
TOTALS = "SELECT account, sum(amount) AS total, sum(rate) AS rates, count(*) AS orders FROM source GROUP BY account"
MINUTES = """
SELECT account, date_trunc('minute', at) AS window_start, sum(amount) AS total, count(*) AS orders
FROM source GROUP BY ALL
"""
COUNT = 600


def made(rig: Rig, name: str) -> str:
    """Another topic of the test's."""
    topic = f"{rig.topic}-{name}"
    admin = AdminClient({"bootstrap.servers": rig.servers})
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
    return topic


@pytest.fixture
def orders(rig: Rig) -> KafkaSource:
    values = [
        b'{"id":%d,"account":%d,"amount":"%d.%02d","rate":%f,"at":"2026-11-20T12:%02d:00Z"}'
        % (i, i % 7, i % 50, i % 100, i / 7, i // 60)
        for i in range(COUNT)
    ]
    rig.put_values(values, partitions=4)
    return KafkaSource(rig.topic, bootstrap_servers=rig.servers, format="json", schema=SCHEMA)


def ran(rig: Rig, flow: Flow) -> Pipeline:
    """The flow on the engine, up to the topic's end."""
    pipeline = Pipeline(flow, runtime=Engine(workers=2), checkpoint=rig.checkpoint(), directory=str(rig.directory))
    pipeline.run()
    return pipeline


def found(rig: Rig, pipeline: Pipeline, sink: Sink, expect: str, key: Any = ()) -> Comparison:
    with closing(replace(pipeline, runtime=Spark()).writer()) as flow:
        result = verify(rig.spark, flow, sink, key, expect)
    assert result.is_exact == (wrong(result.comparison) == {})
    return result.comparison


def wrong(comparison: Comparison) -> dict[str, int]:
    kinds = ("lost", "duplicated", "changed", "unexpected")
    return {kind: n for kind in kinds if (n := getattr(comparison, kind))}


def test_totals_of_an_aggregate_are_exact_and_one_that_is_off_is_named_with_both_values(
    rig: Rig, orders: KafkaSource
) -> None:
    sink = PostgresSink(rig.url, "totals", mode="upsert", key=["account"], order="onefold_epoch")
    flow = Flow("totals")
    rows = flow.source(orders.bounded(), uid="in").key_by("account")
    rows.aggregate(uid="totals", total=sum_("amount"), rates=sum_("rate"), orders=count()).sink(sink)
    pipeline = ran(rig, flow)
    exact = found(rig, pipeline, sink, TOTALS)
    assert (exact.expected, exact.actual, wrong(exact)) == (7, 7, {})

    ((total,),) = rig.sql("UPDATE totals SET total = total + 0.01 WHERE account = 3 RETURNING total")
    rig.sql("DELETE FROM totals WHERE account = 5")
    differs = found(rig, pipeline, sink, TOTALS)
    assert wrong(differs) == {"lost": 1, "changed": 1}
    (said,) = differs.samples["changed"]
    assert said.startswith("account=3 (expected 1, found 1): total is ") and f"total is {total}, and was to be" in said
    assert differs.samples["lost"] == ["account=5 (expected 1, found 0)"]


def test_windows_and_a_window_that_is_off_by_one(rig: Rig, orders: KafkaSource) -> None:
    sink = PostgresSink(rig.url, "minutes", mode="upsert", key=["account", "window_start"], order="onefold_epoch")
    flow = Flow("minutes")
    stream = flow.source(orders.bounded(), uid="in", watermarks=bounded("at", "10 minutes")).key_by("account")
    windows = stream.window(Tumbling("1 minute")).aggregate(uid="minutes", total=sum_("amount"), orders=count())
    windows.sink(sink)
    pipeline = ran(rig, flow)
    exact = found(rig, pipeline, sink, MINUTES)
    assert (exact.expected, wrong(exact)) == (70, {})
    rig.sql("UPDATE minutes SET orders = orders + 1 WHERE account = 2 AND window_start = '2026-11-20 12:04Z'")
    differs = found(rig, pipeline, sink, MINUTES)
    assert wrong(differs) == {"changed": 1}
    assert "orders is 10, and was to be 9" in differs.samples["changed"][0]


def test_a_topic_of_totals_has_the_newest_of_each_key(rig: Rig, orders: KafkaSource) -> None:
    sink = KafkaSink(made(rig, "totals"), bootstrap_servers=rig.servers, format="json", key="account")
    flow = Flow("totals")
    rows = flow.source(orders.bounded(), uid="in").key_by("account")
    rows.aggregate(uid="totals", total=sum_("amount")).sink(sink)
    pipeline = ran(rig, flow)
    query = "SELECT account, sum(amount) AS total FROM source GROUP BY account"
    assert wrong(found(rig, pipeline, sink, query, ["account"])) == wrong(found(rig, pipeline, sink, query)) == {}
    off = query.replace("sum(amount)", "sum(if(id = 17, amount + 1, amount))")
    assert wrong(found(rig, pipeline, sink, off, ["account"])) == {"changed": 1}
    producer = in_order(rig.servers)
    producer.produce(sink.settings.topic, None, key=b"3", partition=javas_partition(b"3", 2))  # a tombstone
    assert producer.flush(30) == 0
    differs = found(rig, pipeline, sink, query)
    assert (wrong(differs), differs.samples["lost"]) == ({"lost": 1}, ["account=3 (expected 1, found 0)"])
    as_text = query.replace("sum(amount)", "sum(amount) > 0")
    with raises(BadRecord, "value-not-readable", "total"):
        found(rig, pipeline, sink, as_text)


def test_a_join_of_two_topics_and_a_pair_that_is_missing(rig: Rig, orders: KafkaSource) -> None:
    other = made(rig, "payments")
    paid = [
        b'{"order":%d,"cents":%d,"at":"2026-11-20T12:%02d:30Z"}' % (i, i * 100, i // 60) for i in range(0, COUNT, 3)
    ]
    rig.put_values(paid, partitions=2, topic=other)
    schema = "order long, cents long, at timestamp"
    payments = KafkaSource(other, bootstrap_servers=rig.servers, format="json", schema=schema)
    sink = PostgresSink(rig.url, "paid")
    flow = Flow("paid")
    times = bounded("at", "10 minutes")
    left = flow.source(orders.bounded(), uid="orders", watermarks=times).key_by("id")
    right = flow.source(payments.bounded(), uid="payments", watermarks=times).key_by("order")
    left.join_within(right, "paid", after="15 minutes").select("id", "amount", "cents").sink(sink)
    pipeline = ran(rig, flow)
    query = f"SELECT o.id, o.amount, p.cents FROM `{rig.topic}` o JOIN `{other}` p ON o.id = p.order"
    exact = found(rig, pipeline, sink, query, ["id"])
    assert (exact.expected, wrong(exact)) == (COUNT // 3, {})
    rig.sql("DELETE FROM paid WHERE id = 33")
    rig.sql("UPDATE paid SET cents = 1 WHERE id = 36")
    differs = found(rig, pipeline, sink, query, ["id"])
    assert wrong(differs) == {"lost": 1, "changed": 1}
    assert differs.samples["changed"] == ["id=36 (expected 1, found 1): cents is 1, and was to be 3600"]


def test_two_topics_are_views_of_their_names(rig: Rig, orders: KafkaSource) -> None:
    other = made(rig, "names")
    rig.put_values([b'{"account":%d,"name":"n%d"}' % (i, i) for i in range(5)], partitions=1, topic=other)
    names = KafkaSource(other, bootstrap_servers=rig.servers, format="json", schema="account long, name string")
    sink = PostgresSink(rig.url, "named", mode="upsert", key=["account"], order="onefold_epoch")
    flow = Flow("named")
    first = flow.source(orders.bounded(), uid="orders").select("account")
    both = first.union(flow.source(names.bounded(), uid="names").select("account"))
    both.key_by("account").aggregate(uid="n", n=count()).sink(sink)
    pipeline = ran(rig, flow)
    query = f"SELECT account, count(*) AS n FROM (TABLE `{rig.topic}`) GROUP BY account"
    assert wrong(found(rig, pipeline, sink, query)) == {"changed": 5}
    united = f"SELECT account FROM `{rig.topic}` UNION ALL SELECT account FROM `{other}`"
    assert wrong(found(rig, pipeline, sink, f"SELECT account, count(*) AS n FROM ({united}) GROUP BY account")) == {}


def test_the_command_takes_the_query_or_its_file_and_refuses_what_makes_no_sense(rig: Rig, tmp_path: Path) -> None:
    rig.put(60)
    pipeline = piped("test", source=rig.source(), sinks=[rig.sink(), rig.sink(name="again", table="again")])
    rig.run(rig.pipeline(*pipeline.sinks))
    (tmp_path / "even.sql").write_text("SELECT id, n FROM source WHERE id % 2 = 0")

    def verified(*arguments: str) -> tuple[int, str]:
        answer = CliRunner().invoke(app, ["verify", named(pipeline), "--key=id", *arguments])
        return answer.exit_code, answer.output

    code, said = verified("--sink=rows", "--expect", "SELECT id, n FROM source")
    assert (code, "rows: exact" in said) == (0, True), said
    code, said = verified("--sink=rows", "--json", "--expect", str(tmp_path / "even.sql"))
    counts = json.loads(said)["sinks"]["rows"]["comparison"]
    assert (code, counts["unexpected"], counts["lost"]) == (1, 30, 0)
    for code_of, given in (
        ("options-conflict", ["--expect", "SELECT 1 AS id"]),
        ("transform-sql-invalid", ["--sink=rows", "--expect", "SELECT nothing FROM source"]),
        ("no-such-column", ["--sink=rows", "--expect", "SELECT n FROM source"]),
        ("option-value", ["--sink=rows", "--expect", str(tmp_path / "none.sql")]),
        ("no-such-column", ["--sink=rows", "--expect", "SELECT id, 1 AS more FROM source"]),
    ):
        with raises(ConfigError, code_of):
            CliRunner().invoke(app, ["verify", named(pipeline), "--key=id", *given], catch_exceptions=False)
