"""Sends a file's lines to a topic, each as one record, and makes the topic where it is missing:

    python produce.py orders orders/orders.jsonl
    python produce.py enriched                     only makes it

Kafka is that of the environment variable KAFKA: its address, host:port.
"""

import os
import sys
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 3

topic, files = sys.argv[1], sys.argv[2:]
servers = {"bootstrap.servers": os.environ["KAFKA"]}
admin = AdminClient(servers)
if topic not in admin.list_topics(timeout=30).topics:
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
producer = Producer({**servers, "enable.idempotence": True, "log_level": 0})
lines = [line for file in files for line in Path(file).read_bytes().splitlines()]
for number, line in enumerate(lines):
    producer.produce(topic, line, partition=number % PARTITIONS)
if producer.flush(60):
    sys.exit(f"Kafka at {os.environ['KAFKA']} did not take all records")
print(f"{topic}: {len(lines)} records sent")
