"""`pathway_sum.py SERVERS TOPIC ROWS`: a sum by key with Pathway; into nothing, without persistence."""

from __future__ import annotations

import sys
import uuid

import pathway as pw


class Record(pw.Schema):
    id: int
    account: int
    amount: int


servers, topic, _rows = sys.argv[1:]
settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
records = pw.io.kafka.read(settings, topic=topic, schema=Record, format="json", mode="static")
totals = records.groupby(pw.this.account).reduce(pw.this.account, total=pw.reducers.sum(pw.this.amount))
pw.io.null.write(totals)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
