"""`quix_sum.py SERVERS TOPIC ROWS`: a sum by the message's key with Quix Streams; its state has its changelog topic."""

from __future__ import annotations

import logging
import sys
import tempfile
import uuid
from typing import Any

from quixstreams import Application, State

servers, topic, rows = sys.argv[1:]


def added(record: dict[str, Any], state: State) -> int:
    total: int = state.get("total", 0) + record["amount"]
    state.set("total", total)
    return total


logging.disable(logging.WARNING)
app = Application(
    servers,
    consumer_group=uuid.uuid4().hex,
    auto_offset_reset="earliest",
    state_dir=tempfile.mkdtemp(),
    commit_interval=1.0,
    loglevel=None,
)
records = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="json"))
records.apply(added, stateful=True)
app.run(count=int(rows))
