"""`quix_windows.py SERVERS TOPIC ROWS KIND TOLD`: windows by the message's key and time with Quix Streams; its state
has its changelog topic.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Sum

servers, topic, rows, kind, told = sys.argv[1:]
left, windows, total = int(rows), 0, 0


def read(_record: dict[str, Any]) -> None:
    """Ends with the last record: what `run` counts are results."""
    global left
    left -= 1
    if left == 0:
        app.stop()


def count(result: dict[str, Any]) -> None:
    global windows, total
    windows, total = windows + (result["total"] > 0), total + result["total"]


logging.disable(logging.WARNING)
app = Application(
    servers,
    consumer_group=uuid.uuid4().hex,
    auto_offset_reset="earliest",
    state_dir=tempfile.mkdtemp(),
    commit_interval=1.0,
    loglevel=None,
)
records = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="json")).update(read)
match kind:
    case "tumbling":
        window: Any = records.tumbling_window(60_000, grace_ms=5_000)
    case "sliding":
        window = records.hopping_window(60_000, 1_000, grace_ms=5_000)
    case _:
        window = records.session_window(10_000, grace_ms=5_000)
# by key, a window would close only when its own key comes again
window.agg(total=Sum("amount")).final(closing_strategy="partition").update(count)
app.run()
Path(told).write_text(f"{windows} {total}")
