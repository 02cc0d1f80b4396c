"""The flow of totals.py on a real Kafka and a real Postgres: pytest test_totals.py"""

import json
from decimal import Decimal

import psycopg
from confluent_kafka import Producer
from totals import SCHEMA, totals

from onefold.sources import KafkaSource


def test_each_order_counts_once_however_often_the_flow_is_run(kafka, kafka_topic, postgres_url, tmp_path):
    topic = kafka_topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(100):
        order = {"id": number, "account": number % 10, "amount": "2.50", "at": "2026-11-26T12:00:00Z"}
        producer.produce(topic, json.dumps(order))
    producer.flush()
    orders = KafkaSource(topic, bootstrap_servers=kafka.bootstrap_servers, format="json", schema=SCHEMA)
    for _ in range(2):
        totals(orders.bounded(), postgres_url).run(checkpoint=str(tmp_path))  # to where the topic ended at first
    with psycopg.connect(postgres_url) as connection:
        for table in ("totals", "minutes"):  # at the end of the topic the minute is over
            rows = connection.execute(f"SELECT account, orders, amount FROM {table} ORDER BY account").fetchall()
            assert rows == [(account, 10, Decimal("25.00")) for account in range(10)]
