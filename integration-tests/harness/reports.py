"""Reports with epochs made up: what a page shows of a pipeline that was not started."""

from __future__ import annotations

from typing import Any

from onefold.core import Committable, EpochRecord, EpochState, Positions, Range, SinkKind
from onefold.core.invariants import Comparison
from onefold.report.page import Report
from onefold.report.timeline import Incident
from onefold.store.history import StoredEpoch

__all__ = ["BEGIN_S", "ODD", "an_epoch", "epochs", "report"]

BEGIN_S = 1_795_456_800.0  # 2026-11-23 18:00:00 UTC
ODD = (
    "</script><script>document.title = 'run'</script>",
    "</style></title><!-- \"><img src=http://example.invalid/x onerror=alert(1)>'",
    "a\0b\ud800c\udfff\u202egnp.exe\u2028",
    "k" * 10_000,
)


def an_epoch(number: int, generation: int = 1, state: str = "complete", **more: Any) -> StoredEpoch:
    """One each two seconds, which takes one; 100 rows of a topic's two partitions. `at_s` is after BEGIN_S."""
    at_ms = int((BEGIN_S + more.pop("at_s", number * 2.0)) * 1000)
    is_complete = state == "complete"
    first = more.pop("first", (number - 1) * 50)
    ends = [Positions.of({f"orders/{partition}": at for partition in range(2)}) for at in (first, first + 50)]
    part = Committable("orders", SinkKind.TWO_PHASE, f"h{number}", generation, number, more.pop("rows", 100))
    record = EpochRecord(
        pipeline="orders",
        epoch=number,
        generation=generation,
        state=EpochState(state),
        range=Range(*ends),
        timestamp_ms=at_ms,
        query_id=more.pop("query_id", "q"),
        batch_id=number,
        fingerprint="",
        manifest=(part,) if is_complete else (),
    )
    took_ms = int(more.pop("took_s", 1.0) * 1000)
    return StoredEpoch(
        record,
        0,
        at_ms,
        at_ms if is_complete else None,
        at_ms + took_ms if is_complete else None,
        more.pop("error", None),
    )


def epochs(count: int) -> list[StoredEpoch]:
    """With a new generation, after a wait, each fifteen epochs, and others longer and shorter."""
    return [
        an_epoch(
            number,
            generation=1 + number // 15,
            at_s=number * 2.0 + number // 15 * 6,
            rows=60 + number * 37 % 41,
            took_s=0.4 + number * 29 % 13 / 10,
        )
        for number in range(1, count + 1)
    ]


def report(count: int = 60, **more: Any) -> Report:
    """Of a pipeline with two sinks: one row was lost, and one is there twice."""
    orders = Comparison(
        expected=600_000,
        actual=600_000,
        lost=1,
        duplicated=1,
        changed=0,
        unexpected=0,
        dead=12,
        samples={"lost": ["id=5 (expected 1, found 0)"], "duplicated": ["id=7 (expected 1, found 2)"]},
        notes=("the sink began after epoch 3",),
    )
    topic = Comparison(600_000, 600_000, 0, 0, 0, 0, partitions={"sales/0": {"duplicated": 1}, "sales/3": {"lost": 1}})
    found = {
        "title": "onefold verify: orders",
        "is_exact": False,
        "comparisons": {"orders": orders, "sales": topic},
        "invariants": {
            "no-loss": ["orders lacks 1 records: id=5 (expected 1, found 0)"],
            "no-duplicate": ["orders shows 1 records more than once: id=7 (expected 1, found 2)"],
            "chain": [],
            "resolve-once": [],
            "fenced-never-decides": [],
            "nothing-in-doubt": [],
        },
        "epochs": epochs(count),
        "incidents": [Incident("faults", BEGIN_S + at, f"kill driver: process {at}") for at in (32, 33, 70, 104)],
        "tables": {"Lag": [{"sink": "orders", "behind": "1,200 records"}, {"sink": "sales", "behind": "0 records"}]},
    }
    return Report(**(found | more))
