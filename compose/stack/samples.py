"""Sends sample records to the topic of one of the pipelines: python samples.py orders|events|payments COUNT

Each run goes on with the numbers after those of the one before. KAFKA in the environment is its address.
"""

import datetime as dt
import json
import os
import sys
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

BEGIN = dt.datetime(2026, 11, 20, 8, tzinfo=dt.UTC)
CITIES, SUBJECTS, CURRENCIES = ("Aachen", "Brno", "Cádiz", "Delft"), ("books", "bikes", "maps"), ("EUR", "USD", "CZK")


def order(number: int) -> dict[str, Any]:
    return {"account": number % 50_000, "amount": f"{number % 4_999 / 100 + 0.01:.2f}"}


def event(number: int) -> dict[str, Any]:
    """What a visitor looked at, and spent."""
    city, subject = CITIES[number * 7 % 4], SUBJECTS[number // 5 % 3]
    return {"visitor": f"v{number % 1_009}", "city": city, "topic": subject, "spent": f"{number % 13 * 2.5:.2f}"}


def payment(number: int) -> dict[str, Any]:
    amount = f"{number % 199_999 / 100 + 0.01:.2f}"
    return {"account": number % 50_000, "currency": CURRENCIES[number % 3], "amount": amount}


KINDS = {"orders": order, "events": event, "payments": payment}

topic, count = sys.argv[1], int(sys.argv[2])
record_of, servers = KINDS[topic], {"bootstrap.servers": os.environ["KAFKA"]}
reader = Consumer({**servers, "group.id": "samples"})
partitions = sorted(reader.list_topics(topic, timeout=60).topics[topic].partitions)
before = sum(reader.get_watermark_offsets(TopicPartition(topic, one), timeout=60)[1] for one in partitions)
reader.close()

producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4"})
for number in range(before + 1, before + count + 1):
    at = BEGIN + dt.timedelta(milliseconds=7 * number)
    value = json.dumps({"id": number, **record_of(number), "at": at.isoformat()}).encode()
    while True:
        try:
            producer.produce(topic, value, partition=partitions[number % len(partitions)])
            break
        except BufferError:  # its queue is full
            producer.poll(0.1)
    producer.poll(0)
if left := producer.flush(120):
    sys.exit(f"Kafka at {os.environ['KAFKA']} did not take {left:,} records")
print(f"{topic}: {count:,} records sent, numbers {before + 1:,} to {before + count:,}")
