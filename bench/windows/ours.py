"""`python -m bench.windows.ours WHAT KIND SERVERS TOPIC URL TABLE CHECKPOINT`: windows by key as a flow on the engine,
exactly once into Postgres. WHAT is `ours`; `elements`, whose rows are kept one by one; `dropped`, whose results a
filter drops before the sink; or `unwindowed`, whose records a filter drops, without a window: what `dropped` takes more
is the windows' own part.
"""

from __future__ import annotations

import sys

import pyarrow.compute as pc

from onefold.flow import Flow, KeepLast, Session, Sliding, Tumbling, bounded, sum_
from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

RECORDS = "id long, account long, amount long, at timestamp"
EVERY_S = 1.0


def window(kind: str) -> Session | Sliding | Tumbling:
    match kind:
        case "tumbling":
            return Tumbling("60 seconds")
        case "sliding":
            return Sliding("60 seconds", "1 second")
        case _:
            return Session("10 seconds")


def main() -> None:
    what, kind, servers, topic, url, table, checkpoint = sys.argv[1:]
    flow = Flow(table)
    source = KafkaSource(topic, bootstrap_servers=servers, format="json", schema=RECORDS)
    rows = flow.source(source.bounded(), uid="rows", watermarks=bounded("at", "5 seconds"))
    if what == "unwindowed":
        found = rows.filter(pc.field("amount") < 0)
    else:
        evictor = KeepLast(10**9) if what == "elements" else None
        windowed = rows.key_by("account").window(window(kind), evictor=evictor)
        found = windowed.aggregate(uid="totals", total=sum_("amount"))
    if what == "dropped":
        found = found.filter(pc.field("total") < 0)
    found.sink(PostgresSink(url, table))
    flow.run(checkpoint=checkpoint, workers=1, epoch_interval_s=EVERY_S)


if __name__ == "__main__":
    main()
