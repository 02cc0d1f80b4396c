"""Sends a thousand orders a second to the topic `orders`, until you stop it: python orders.py"""

import datetime as dt
import itertools
import json
import time
from contextlib import suppress

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onefold.local import KafkaServer
from onefold.spark import exit_codes

with exit_codes():  # an error is one line
    servers = {"bootstrap.servers": KafkaServer(".onefold/local").bootstrap_servers}
admin = AdminClient(servers)
if "orders" not in admin.list_topics(timeout=30).topics:
    admin.create_topics([NewTopic("orders", 3)])["orders"].result()
producer = Producer(servers)
with suppress(KeyboardInterrupt):
    for number in itertools.count(time.time_ns() // 1000):
        order = {"id": number, "account": number % 100, "amount": f"{number % 5000 / 100:.2f}"}
        producer.produce("orders", json.dumps({**order, "at": dt.datetime.now(dt.UTC).isoformat()}))
        producer.poll(0.001)
producer.flush()
