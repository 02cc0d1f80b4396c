"""`python -m bench.keyed.ours HOW SERVERS TOPIC URL TABLE CHECKPOINT`: a sum by key as a flow on the engine, exactly
once into Postgres by upsert. HOW is `aggregate`, or `process` with a Python function a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from onefold.flow import Flow, StatefulProcessor, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

RECORDS = "id long, account long, amount long"
EVERY_S = 1.0


class Sum(StatefulProcessor):
    """Adds row by row, as a program does that decides something at each."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        kept = self.total.get()
        total = kept[0] if kept else 0
        for row in rows:
            total += row["amount"]
        self.total.update((total,))
        yield {"account": key[0], "total": total}


def main() -> None:
    how, servers, topic, url, table, checkpoint = sys.argv[1:]
    flow = Flow(table)
    source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema=RECORDS)
    rows = flow.source(source.bounded(), uid="rows").key_by("account")
    if how == "aggregate":
        totals = rows.aggregate(uid="totals", total=sum_("amount"))
    else:
        totals = rows.process(Sum(), "account long, total long", uid="totals")
    totals.sink(PostgresSink(url, table, mode="upsert", key="account", order="onefold_epoch"))
    flow.run(checkpoint=checkpoint, workers=1, epoch_interval_s=EVERY_S)


if __name__ == "__main__":
    main()
