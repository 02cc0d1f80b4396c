"""Makes the topics that are missing: python topics.py orders enriched. KAFKA in the environment is its address."""

import os
import sys

from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4

admin = AdminClient({"bootstrap.servers": os.environ["KAFKA"]})
there = admin.list_topics(timeout=60).topics
missing = [NewTopic(name, PARTITIONS) for name in sys.argv[1:] if name not in there]
for made in admin.create_topics(missing).values() if missing else ():
    made.result(60)
print(f"topics: {', '.join(sys.argv[1:])}")
