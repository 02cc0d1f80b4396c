"""Faults that are planted by hand into what one pipeline has written, one at a time and all at once: `verify` finds
each, names it with both values and its record's offset, and finds nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from harness.ending import run_until
from harness.errors import raises
from harness.support import CrashError, Rig, crash, failing_at

from onefold.core import Damaged, DataLoss
from onefold.flow import Flow, Tumbling, bounded, count, sum_
from onefold.pipeline import Engine, Pipeline, Spark
from onefold.sinks import KafkaSink
from onefold.spark.verify.verification import Verification, verify

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SCHEMA = "id long, k long, amount decimal(12,2), name string, at timestamp"
MINUTES = """
SELECT k, date_trunc('minute', at) AS window_start, sum(amount) AS total, count(*) AS orders
FROM source WHERE at < TIMESTAMP'2026-11-20 12:03:00Z' GROUP BY ALL
"""
FIRST, SECOND, KEYS = 320, 40, 30  # records of both runs, and how many keys they have


class Faults:
    """A pipeline into an appended table, a table of versions, windows and a topic; and what is done to these."""

    def __init__(self, rig: Rig, copy: str) -> None:
        self.rig, self.sent = rig, 0
        self.sinks = {
            "rows": rig.sink(table="rows"),
            "newest": rig.sink(table="newest", mode="upsert", key="k", order="id"),
            "minutes": rig.sink(table="minutes", mode="upsert", key=["k", "window_start"], order="onefold_epoch"),
            "copy": KafkaSink(copy, bootstrap_servers=rig.servers, key="id"),
        }

    def put(self, count: int) -> None:
        """A minute has 80 of the records, the last one the rest, and a partition every fourth."""
        numbers = range(self.sent, self.sent + count)
        values = [
            b'{"id":%d,"k":%d,"amount":"%d.%02d","name":"n%d","at":"2026-11-20T12:%02d:%02dZ"}'
            % (i, i % KEYS, i % 50, i % 100, i, min(i // 80, 3), i % 60)
            for i in numbers
        ]
        self.rig.put_values(values)
        self.sent += count

    def pipeline(self) -> Pipeline:
        flow = Flow("test")
        source = self.rig.source(schema=SCHEMA)
        rows = flow.source(source, uid="source", watermarks=bounded("at", "1 second"))
        for name in ("rows", "newest", "copy"):
            rows.sink(self.sinks[name])
        windows = rows.key_by("k").window(Tumbling("1 minute"))
        windows.aggregate(uid="minutes", total=sum_("amount"), orders=count()).sink(self.sinks["minutes"])
        directory = str(self.rig.directory)
        return Pipeline(flow, runtime=Engine(workers=1), checkpoint=self.rig.checkpoint(), directory=directory)

    def run(self) -> None:
        """Until the tables have what the records make; of the last minute's windows nothing shows yet."""

        def is_done() -> bool:
            with suppress(psycopg.Error):
                counted = self.rig.sql("SELECT (SELECT count(*) FROM rows), (SELECT count(*) FROM minutes)")
                return counted == [(self.sent, KEYS * 3)]
            return False

        run_until(self.pipeline(), is_done)

    def verified(self, name: str) -> Verification:
        sink: Any = self.sinks[name]
        expect = MINUTES if name == "minutes" else ""
        with closing(replace(self.pipeline(), runtime=Spark()).writer()) as pipeline:
            return verify(self.rig.spark, pipeline, sink, ["id"] if name == "rows" else (), expect)

    def at(self, number: int) -> str:
        return f"from {self.rig.topic}/{number % 4} at offset {number // 4}"

    def found(self, name: str) -> tuple[dict[str, int], dict[str, list[str]], set[str]]:
        """What is wrong with a sink by kind, the samples of it, and what contradicts any other invariants."""
        result = self.verified(name)
        compared = result.comparison
        kinds = ("lost", "duplicated", "changed", "unexpected", "untold")
        wrong = {kind: n for kind in kinds if (n := getattr(compared, kind))}
        others = ("chain", "resolve-once", "nothing-in-doubt")
        broken = {text for invariant in others for text in result.invariants[invariant]}
        assert result.is_exact == (not broken and not {*wrong} - {"untold"})
        return wrong, {kind: sorted(texts) for kind, texts in compared.samples.items()}, broken

    @contextmanager
    def planted(self, *statements: str) -> Iterator[None]:
        """Rows as somebody has changed them, and back."""
        for table in TABLES:
            self.rig.sql(f"CREATE TABLE public.kept_{table.rpartition('.')[2]} AS TABLE {table}")
        for statement in statements:
            self.rig.sql(statement)
        yield
        for table in TABLES:
            kept = f"public.kept_{table.rpartition('.')[2]}"
            self.rig.sql(f"TRUNCATE {table}; INSERT INTO {table} TABLE {kept}; DROP TABLE {kept}")


TABLES = ("rows", "newest", "minutes", "onefold_sinks.onefold_ledger")
DELETED = "DELETE FROM rows WHERE id = 37"
DOUBLED = "INSERT INTO rows SELECT * FROM rows WHERE id = 41"
CHANGED = "UPDATE rows SET amount = amount + 0.01 WHERE id = 50"
SWAPPED = "UPDATE newest SET (id, amount, name, at) = (33, 33.33, 'n33', '2026-11-20T12:00:33Z') WHERE k = 3"
UNLEDGERED = "DELETE FROM onefold_sinks.onefold_ledger WHERE sink = 'rows'"
OFF_BY_ONE = "UPDATE minutes SET total = total + 1 WHERE k = 2 AND window_start = '2026-11-20 12:01Z'"
DAMAGE = "epoch 3 is damaged: decided, and a part of it can no longer be committed"


def test_every_fault_alone_and_all_at_once(
    rig: Rig, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.spark.conf.set("spark.sql.shuffle.partitions", "1")
    faults = Faults(rig, kafka_topic(partitions=2))
    faults.put(FIRST)
    faults.run()
    for name in faults.sinks:
        assert faults.found(name) == ({}, {}, set()), name

    lost = {37: f"id=37 (expected 1, found 0): {faults.at(37)}"}
    doubled = [f"id=41 (expected 1, found 2): {faults.at(41)}"]
    changed = [f"id=50 (expected 1, found 1): amount is 0.51, and was to be 0.50; {faults.at(50)}"]
    off = ["k=2, window_start=2026-11-20 12:01:00 (expected 1, found 1): total is {}, and was to be {}"]
    ((total,),) = rig.sql("SELECT total FROM minutes WHERE k = 2 AND window_start = '2026-11-20 12:01Z'")
    off = [off[0].format(total + 1, total)]

    def stale(newest: int) -> list[str]:
        pairs = [(f"{33}", f"{newest}"), ("33.33", f"{newest % 50}.{newest % 100:02}"), ("n33", f"n{newest}")]
        pairs.append(("2026-11-20 12:00:33", f"2026-11-20 12:0{min(newest // 80, 3)}:{newest % 60:02}"))
        columns = zip(("id", "amount", "name", "at"), pairs, strict=True)
        said = ", ".join(f"{name} is {is_}, and was to be {due}" for name, (is_, due) in columns if is_ != due)
        return [f"k=3 (expected 1, found 1): {said}; an older version, {faults.at(33)}; {faults.at(newest)}"]

    def gone(epoch: int) -> str:
        return f"rows's ledger is gone, or has no epoch, the store at {epoch}"

    for statement, name, expected in (
        (DELETED, "rows", ({"lost": 1}, {"lost": [lost[37]]}, set())),
        (DOUBLED, "rows", ({"duplicated": 1}, {"duplicated": doubled}, set())),
        (CHANGED, "rows", ({"changed": 1}, {"changed": changed}, set())),
        (SWAPPED, "newest", ({"changed": 1}, {"changed": stale(303)}, set())),
        (UNLEDGERED, "rows", ({}, {}, {gone(2)})),
        (OFF_BY_ONE, "minutes", ({"changed": 1}, {"changed": off}, set())),
    ):
        with faults.planted(statement):
            assert faults.found(name) == expected, statement

    # A decided transaction that somebody rolls back: the other sinks have the epoch, and this one lacks it.
    faults.put(SECOND)
    with monkeypatch.context() as patch:
        failing_at(patch, "after:Decide", crash)
        with pytest.raises(CrashError):
            faults.run()
    ((gid,),) = rig.sql("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'of/test/rows/%'")
    rig.sql(f"ROLLBACK PREPARED '{gid}'")
    with raises(Damaged, "decided-work-gone", gid):
        faults.run()
    lost |= {i: f"id={i} (expected 1, found 0): {faults.at(i)}" for i in range(FIRST, FIRST + SECOND)}
    wrong, samples, broken = faults.found("rows")
    assert (wrong, broken) == ({"lost": SECOND}, {DAMAGE})
    assert len(samples["lost"]) == 5 and {*samples["lost"]} < {*lost.values()} - {lost[37]}
    assert faults.found("newest") == ({}, {}, {DAMAGE})

    with faults.planted(DELETED, DOUBLED, CHANGED, SWAPPED, UNLEDGERED, OFF_BY_ONE):
        admin = AdminClient({"bootstrap.servers": rig.servers, "log_level": 0})
        copy = faults.sinks["copy"].settings.topic
        for deleted in admin.delete_records([TopicPartition(copy, 0, 10)]).values():
            deleted.result(30)
        wrong, samples, broken = faults.found("rows")
        assert wrong == {"lost": SECOND + 1, "duplicated": 1, "changed": 1}
        assert {*samples.pop("lost")} < {*lost.values()}
        assert samples == {"duplicated": doubled, "changed": changed}
        assert broken == {gone(2), DAMAGE}
        assert faults.found("newest") == ({"changed": 1}, {"changed": stale(333)}, {DAMAGE})
        assert faults.found("minutes") == ({"changed": 1}, {"changed": off}, {DAMAGE})
        wrong, samples, broken = faults.found("copy")
        assert (wrong, {*samples}, broken) == ({"untold": 10}, {"untold"}, {DAMAGE})

    # What the source itself has lost nobody can compare.
    for deleted in admin.delete_records([TopicPartition(rig.topic, 1, 7)]).values():
        deleted.result(30)
    with pytest.raises(DataLoss, match="deleted everything before 7"):
        faults.found("rows")
