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

    def __init__(self, kept: str = "total long, records long") -> None:
        self.kept = kept

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", self.kept)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        total, records = self.total.get() or (0, 0)
        for row in rows:
            total, records = total + row["amount"], records + 1
        self.total.update((total, records))
        yield {"account": key[0], "total": total, "records": records}


def main() -> None:
    how, servers, topic, url, table, checkpoint = sys.argv[1:]
    flow = Flow(table)
    source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema=RECORDS)
    rows = flow.source(source.bounded(), uid="rows").key_by("account")
    if how == "aggregate":
        totals, order = rows.aggregate(uid="totals", total=sum_("amount")), "onefold_epoch"
    else:
        # a key has a row of each batch, several in an epoch
        order = "records"
        totals = rows.process(Sum(), "account long, total long, records long", uid="totals")
    totals.sink(PostgresSink(url, table, mode="upsert", key="account", order=order))
    flow.run(checkpoint=checkpoint, workers=1, epoch_interval_s=EVERY_S)


if __name__ == "__main__":
    main()
