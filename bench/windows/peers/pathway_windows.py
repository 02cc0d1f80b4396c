"""`pathway_windows.py SERVERS TOPIC ROWS KIND TOLD`: windows by key with Pathway, of the topic as a static table; into
nothing, without persistence.
"""

from __future__ import annotations

import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pathway as pw


class Record(pw.Schema):  # without `id`, a name that Pathway keeps for itself
    account: int
    amount: int
    at: str


WINDOWS = {
    "tumbling": pw.temporal.tumbling(timedelta(seconds=60)),
    "sliding": pw.temporal.sliding(hop=timedelta(seconds=1), duration=timedelta(seconds=60)),
    # records that are exactly the gap apart are of one session elsewhere; times are whole milliseconds
    "session": pw.temporal.session(max_gap=timedelta(seconds=10, milliseconds=1)),
}

servers, topic, _rows, kind, told = sys.argv[1:]
settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
records = pw.io.kafka.read(settings, topic=topic, schema=Record, format="json", mode="static")
timed = records.select(pw.this.account, pw.this.amount, at=pw.this.at.dt.strptime("%Y-%m-%dT%H:%M:%S%.3fZ"))
windows = timed.windowby(pw.this.at, window=WINDOWS[kind], instance=pw.this.account)
totals = windows.reduce(
    account=pw.this._pw_instance, start=pw.this._pw_window_start, total=pw.reducers.sum(pw.this.amount)
)
pw.io.null.write(totals)
# two numbers of all results, which cost next to nothing beside the windows
counted = totals.filter(pw.this.total > 0).reduce(windows=pw.reducers.count(), total=pw.reducers.sum(pw.this.total))


def tell(*, row: dict[str, Any], is_addition: bool, **_more: Any) -> None:
    if is_addition:
        Path(told).write_text(f"{row['windows']} {row['total']}")


pw.io.subscribe(counted, on_change=tell)
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
