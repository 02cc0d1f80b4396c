"""A flow in a process of its own, for tests that kill it: `python flow_job.py job.json`."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from onefold.core import Sink
from onefold.core.source import Source
from onefold.engine import Restart
from onefold.engine.key_groups import group_of, subtask_of
from onefold.flow import (
    BroadcastProcessor,
    Flow,
    IdsWithin,
    OrderedIds,
    Side,
    StatefulProcessor,
    Stream,
    Tumbling,
    Watermarks,
    WindowBounds,
    WindowContext,
    WindowProcessor,
    count,
    last,
    mean,
    min_,
    sum_,
)
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink
from onefold.sources import FileSource, KafkaSource
from onefold.spark.session import spark_session

__all__ = ["FlowJob", "FlowProcess", "Numbering", "Quiet", "Ruling"]

WAIT_S = 240.0  # on a machine that has much else to do


class Visits(StatefulProcessor):
    """Of each account the ids, how often each remainder of n came, and how many records there were; at once, and again
    by a timer at the end of the epoch."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "records long")
        self._ids = handle.getListState("ids", "id long")
        self._remainders = handle.getMapState("remainders", "remainder long", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del key
        (count,) = self._count.get() or (0,)
        for row in rows:
            count += 1
            self._ids.appendValue((row.id,))
            (times,) = self._remainders.getValue((row.n % 3,)) or (0,)
            self._remainders.updateValue((row.n % 3,), (times + 1,))
            if self._remainders.containsKey((2,)) and times == 4:
                self._remainders.removeKey((2,))
            yield Side("each", (row.id, count))
        self._count.update((count,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        ids = [id_ for (id_,) in self._ids.get()]
        remainders = [(remainder, times) for (remainder,), (times,) in self._remainders.iterator()]
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield key[0], self._count.get()[0], f"{ids} {remainders} {late}"


class Numbering(StatefulProcessor):
    """Numbers the records of each account."""

    def init(self, handle: Any) -> None:
        self._last = handle.getValueState("last", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (number,) = self._last.get() or (0,)
        for row in rows:
            number += 1
            yield (row.id, key[0], number)
        self._last.update((number,))


class Slow(Numbering):
    """The same, and sleeps for so long at each record of some accounts: those of one subtask of two."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        for row in super().handleInputRows(key, rows, timerValues):
            _sleep(key, self._sleep_s)
            yield row


def _sleep(key: Any, for_s: float) -> None:
    if subtask_of(group_of((key[0],)), 2):
        time.sleep(for_s)


class Hundreds(StatefulProcessor):
    """Adds up the numbers of each account in windows of a hundred ids, one a second. It may sleep as `Slow`."""

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._sums = handle.getMapState("sums", "window_end long", "total long, records long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        for row in rows:
            _sleep(key, self._sleep_s)
            end = (row.id // 100 + 1) * 100
            assert end * 1_000 > timerValues.getCurrentWatermarkInMs(), f"record {row.id} is late"
            total, records = self._sums.getValue((end,)) or (0, 0)
            self._sums.updateValue((end,), (total + row.n, records + 1))
            self._handle.registerTimer(end * 1_000)
        return ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues
        end = expiredTimerInfo.getExpiryTimeInMs() // 1_000
        yield key[0], end, *self._sums.getValue((end,))
        self._sums.removeKey((end,))


class ById(Watermarks):
    """Each partition has its records in the order of their ids, one a second."""

    idle = None

    def of(self, batch: pa.RecordBatch) -> int | None:
        return int(pc.max(batch["id"]).as_py()) * 1_000_000


class Quiet(StatefulProcessor):
    """Each record puts its account's timer off, by so long that none comes. Emits how many timers there are."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        for at_ms in [*self._handle.listTimers()]:
            self._handle.deleteTimer(at_ms)
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        for row in rows:
            yield (row.id, key[0], len([*self._handle.listTimers()]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterable[Any]:
        del timerValues
        raise AssertionError(f"{key}'s timer of {expiredTimerInfo.getExpiryTimeInMs()} has come")


_LAST: Any = {"mode": "upsert", "key": "account", "order": "onefold_epoch"}


def _asleep(each_s: float, batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(each_s * batch.num_rows)
    return batch


def _tossed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Never the same again."""
    return batch.append_column(
        "toss", pa.array([secrets.randbelow(1 << 40) for _ in range(batch.num_rows)], pa.int64())
    )


def _raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise ValueError("always")
    return batch


def _half(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("half", pc.divide(batch["n"].cast(pa.float64()), 2.0))


def _doubled(row: dict[str, Any]) -> Iterator[Any]:
    yield row["id"], row["account"], 2 * row["n"]


class _Sums(WindowProcessor):
    """As the aggregates are, of all rows of a window."""

    def process(self, key: Any, window: WindowBounds, rows: pa.RecordBatch, at: WindowContext) -> Iterator[Any]:
        del key, window
        assert at.state.add("firings", 1) == at.state.add("again", 1)
        yield pc.sum(rows["n"]).as_py(), len(rows)


def _parts(row: dict[str, Any]) -> Iterator[Any]:
    if row["n"] % 2 == 0:
        yield Side("even", (row["id"], row["half"]))
    for number in range(row["n"] % 3):
        yield row["id"], f"{row['text']} {number}"


def _larger(kept: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return max(kept, row, key=lambda one: (one["total"], one["account"]))


class Ruling(BroadcastProcessor):
    """Multiplies the numbers of each account by its factor, which is broadcast."""

    def init(self, handle: Any) -> None:
        self._factors = handle.getBroadcastState("factors", "account long", "factor long")

    def handleBroadcastRows(self, rows: Iterator[Any], timerValues: Any) -> None:
        del timerValues
        for row in rows:
            self._factors.updateValue((row.account,), (row.factor,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        (factor,) = self._factors.getValue(key)
        for row in rows:
            yield (row.id, key[0], row.n * factor)


class Joining(StatefulProcessor):
    """Gives each order of an account its owner, once both are known. A row without an order is an owner's."""

    def init(self, handle: Any) -> None:
        self._owner = handle.getValueState("owner", "owner long")
        self._early = handle.getListState("early", "id long, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterable[Any]:
        del timerValues
        for row in rows:
            if row.owner is None:
                self._early.appendValue((row.id, row.n))
            else:
                assert self._owner.get() is None, f"account {key[0]} has come twice"
                self._owner.update((row.owner,))
        if (owner := self._owner.get()) is not None:
            for id_, n in self._early.get():
                yield id_, key[0], n, owner[0]
            self._early.clear()


@dataclass(frozen=True)
class FlowJob:
    """`topic` and `other` are topics, or folders of files; or tables: "postgres:rows", "hbase:rows".

    `kind` is "rows", which are written as they are, "failing", by a function that needs an n, "numbered", by a
    processor, "slow", by one that sleeps, "spread", over all workers, by a function that does where it has a time,
    "windows", by timers of event time, "late", in windows whose rows come late, with those that are too late for them,
    "totals", by an aggregate, "spark totals", by Spark's, "tossed", by a function that gives each record a number by
    chance, and by sums of these, "raising", by one that raises, "union", rows of the topic `other` too, "joined", with
    the owners that the table `other` has, "ruled", by the factors of that, "letters", with bad records in a table of
    theirs, "once" and "within", by their keys, or "all", for several tables.
    """

    servers: str
    topic: str
    url: str
    checkpoint: str
    kind: str = "rows"
    delivery: str = "two_phase"  # of Postgres; or "kafka", "keyed", "hbase", "rolling", into the topic or table `out`
    workers: int = 1
    at_most: int = 300
    state: str = "memory"
    out: str = ""
    hbase: str = ""  # its Thrift servers
    runtime: str = "engine"  # or "spark"
    name: str = "job"
    other: str = ""
    goes_on: bool = False
    patience_s: float = 120.0
    restarts: int = 3
    alignment: str = "aligned"
    alignment_timeout_s: float | None = None
    sleep_s: float = 0.0  # of "slow" and "windows", at a record
    mechanism: str = "barriers"
    epoch_interval_s: float = 0.0

    def flow(self) -> Flow:
        flow = Flow(self.name)
        has_letters = self.kind == "letters"
        letters = PostgresSink(self.url, table="letters") if has_letters else None
        source = self._source(self.topic, on_error="dead_letter" if has_letters else "fail", columns=self._columns)
        watermarks = ById() if self.kind in ("windows", "late") else None
        records = flow.source(source, uid="records", dead_letters=letters, watermarks=watermarks)
        match self.kind:
            case "rows" | "letters":
                records.sink(self._sink())
            case "raising":
                records.map_batches(_raising).sink(self._sink())
            case "tossed":
                tossed = records.map_batches(_tossed)
                totals = tossed.key_by("account").aggregate(uid="totals", total=sum_("toss"), records=count())
                totals.sink(PostgresSink(self.url, "totals", delivery="two_phase", **_LAST))
                tossed.sink(PostgresSink(self.url, "rows", delivery="two_phase"))
            case "slow":
                slow = records.key_by("account").process(
                    Slow(self.sleep_s), schema="id long, account long, number long", uid="numbers"
                )
                slow.rebalance().filter(pc.field("number") > 0).sink(self._sink())
            case "failing":
                records.flat_map(_doubled, schema="id long, account long, n long").sink(self._sink())
            case "spread":
                spread = records.rebalance()
                slow = spread.map_batches(partial(_asleep, self.sleep_s)) if self.sleep_s else spread
                slow.sink(self._sink())
            case "numbered":
                keyed = records.key_by("account")
                keyed.process(Numbering(), schema="id long, account long, number long", uid="numbers").sink(
                    self._sink()
                )
            case "windows":
                schema = "account long, window_end long, total long, records long"
                keyed = records.key_by("account")
                keyed.process(Hundreds(self.sleep_s), schema, uid="windows", timers="event").sink(self._sink())
            case "late":
                self._late(records)
            case "totals":
                totals = records.key_by("account").aggregate(uid="totals", total=sum_("n"), records=count())
                totals.sink(self._sink(mode="upsert", key="account", order="onefold_epoch"))
            case "once" | "within":
                ids = OrderedIds() if self.kind == "once" else IdsWithin("1 day")
                records.deduplicate(ids, uid="once").select("id", "account", "n").sink(self._sink())
            case "spark totals":
                sql = "SELECT account, sum(n) AS total, count(*) AS records FROM source GROUP BY account"
                totals_of_spark = records.spark_sql(sql, "account long, total long, records long", "update")
                totals_of_spark.sink(self._sink(mode="upsert", key="account", order="onefold_epoch"))
            case "all":
                self._all(records)
            case "union":
                records.union(flow.source(self._source(self.other), uid="others")).sink(self._sink())
            case "joined":
                owners = flow.source(self._source(self.other, schema="account long, owner long"), uid="owners")
                nothing, account, owner = pa.scalar(None, pa.int64()), pc.field("account"), pc.field("owner")
                both = records.with_columns(owner=pc.scalar(nothing)).union(
                    owners.select(id=pc.scalar(nothing), account=account, n=pc.scalar(nothing), owner=owner)
                )
                schema = "id long, account long, n long, owner long"
                both.key_by("account").process(Joining(), schema, uid="joined").sink(self._sink())
            case "ruled":
                rules = flow.source(self._source(self.other, schema="account long, factor long"), uid="rules")
                ruled = records.key_by("account").connect(rules.broadcast())
                ruled.process(Ruling(), schema="id long, account long, n long", uid="ruled").sink(self._sink())
        return flow

    def _late(self, records: Stream) -> None:
        """By seconds that go back by up to 63: results that replace each other, parts of them, and late rows."""
        second = pc.subtract(pc.field("id"), pc.divide(pc.field("n"), pc.scalar(16)))
        timed = records.with_columns(at=pc.multiply(second, pc.scalar(1_000_000)).cast(pa.timestamp("us")))
        keyed = timed.key_by("account")
        ends = Tumbling("20 seconds")
        sums: Any = {"total": sum_("n"), "records": count()}
        whole = keyed.window(ends, on="at", lateness="30 seconds", late="late").aggregate(uid="whole", **sums)
        whole.sink(self._sink(mode="upsert", key=("account", "window_start"), order="emission"))
        whole.side("late").select("id").sink(PostgresSink(self.url, "late", delivery="two_phase"))
        parts = keyed.window(ends, on="at", lateness="30 seconds", results="discarding")
        parts.aggregate(uid="parts", **sums).sink(PostgresSink(self.url, "parts", delivery="two_phase"))
        elements = keyed.window(ends, on="at", lateness="30 seconds").process(
            _Sums(), "total long, records long", uid="elements"
        )
        each: Any = {"mode": "upsert", "key": ("account", "window_start", "emission"), "order": "window_end"}
        elements.sink(PostgresSink(self.url, "elements", delivery="two_phase", **each))

    def _all(self, records: Stream) -> None:
        """Into tables whose names begin with the job's."""
        some = records.filter(pc.field("n") > 10)
        plain = some.with_columns(text=pc.field("n").cast(pa.string())).map_batches(_half)
        parts = plain.flat_map(_parts, schema="id long, text string", sides={"even": "id long, half double"})
        totals = some.union(parts.select("id", account=pc.field("id"), n=pc.scalar(1))).key_by("account")
        totals = totals.aggregate(
            uid="totals", total=sum_("n"), records=count(), mean=mean("n"), least=min_("n"), last=last("id")
        )
        by_records = totals.key_by("records").reduce(_larger, uid="largest")
        visits = records.key_by("account").process(
            Visits(), "account long, records long, seen string", uid="visits", sides={"each": "id long, number long"}
        )
        for name, stream in {
            "plain": plain,
            "parts": parts,
            "even": parts.side("even"),
            "each": visits.side("each"),
        }.items():
            stream.sink(PostgresSink(self.url, f"{self.name}_{name}", delivery="two_phase"))
        totals.sink(self._replacing("totals", "account"))
        visits.sink(self._replacing("visits", "account", "records"))
        by_records.sink(self._replacing("largest", "records"))

    def _replacing(self, name: str, key: str, *order: str) -> Sink:
        settings: Any = {"mode": "upsert", "key": key, "order": ("onefold_epoch", *order), "delivery": "two_phase"}
        return PostgresSink(self.url, f"{self.name}_{name}", **settings)

    def run(self) -> Any:
        if self.runtime == "spark":
            few = {"spark.sql.shuffle.partitions": "2"}
            spark = spark_session(self.name, Path(self.checkpoint).parent / "spark", "local[2]", **few)
            query = self.flow().start(spark, checkpoint=self.checkpoint, trigger={"availableNow": True})
            return query.await_termination()
        return self.flow().run(
            checkpoint=self.checkpoint,
            workers=self.workers,
            state=self.state,
            restart=Restart(strategy="fixed_delay" if self.restarts else "none", attempts=self.restarts or None),
            patience_s=self.patience_s,
            alignment=self.alignment,
            alignment_timeout_s=self.alignment_timeout_s,
            mechanism=self.mechanism,
            epoch_interval_s=self.epoch_interval_s,
        )

    @property
    def _columns(self) -> Any:
        if self.kind in ("once", "within"):
            return ("position", "key")
        return ("position",) if self.delivery == "keyed" else ()

    def _source(
        self,
        topic: str,
        schema: str = "id long, account long, n long",
        on_error: str = "fail",
        columns: Any = (),
    ) -> Source:
        kind, _, table = topic.partition(":")
        if kind == "postgres":
            from onefold.sources import PostgresSource  # whose driver brings pandas, which workers do without

            return PostgresSource(self.url, table, schema=schema, splits=3)
        if kind == "hbase":
            from onefold.sources import HBaseSource

            names = [each.split()[0] for each in schema.split(", ")]
            columns = {name: f"f:{name} integer" for name in names[1:]}
            return HBaseSource(self.hbase, table, row_key=f"{names[0]} integer", columns=columns)
        if "/" in topic:
            of: Any = FileSource(topic, format="json", schema=schema, max_files_per_trigger=2, on_error=on_error)
        else:
            of = KafkaSource(
                topic,
                bootstrap_servers=self.servers,
                format="json",
                schema=schema,
                max_offsets_per_trigger=self.at_most,
                on_error=on_error,
                columns=columns,
            )
        source: KafkaSource | FileSource = of
        goes_on = self.goes_on or (self.runtime == "spark" and self.kind not in ("windows", "late"))
        return source if goes_on else source.bounded()

    def _sink(self, **more: Any) -> Sink:
        if self.delivery == "kafka":
            return KafkaSink(self.out, bootstrap_servers=self.servers)
        if self.delivery == "keyed":
            ids = ("kafka_topic", "kafka_partition", "kafka_offset")
            return KafkaSink(self.out, bootstrap_servers=self.servers, delivery="keyed", id=ids)
        if self.delivery == "hbase":
            return HBaseSink(self.hbase, self.out, row_key="id", family="f")
        if self.delivery == "rolling":
            merge = {"n": "sum", "id": "max"}
            return HBaseSink(self.hbase, self.out, row_key="account", family="f", mode="rolling", merge=merge)
        return PostgresSink(self.url, table="rows", delivery="staged" if more else self.delivery, **more)


class FlowProcess:
    """A job's process. `failpoint` holds it, or its workers, at a named place."""

    def __init__(self, job: FlowJob, directory: Path, failpoint: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.held_at = directory / "held"
        self.held_at.mkdir(exist_ok=True)
        for path in self.held_at.iterdir():
            path.unlink()
        file, self.log = directory / "job.json", directory / "job.log"
        file.write_text(json.dumps(asdict(job)))
        environment = {"ONEFOLD_FAILPOINT": failpoint, "ONEFOLD_FAILPOINT_DIR": str(self.held_at)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(file)], stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def held(self, count: int = 1) -> list[int]:
        """Wait until so many processes are held; their ids."""
        until_s = time.monotonic() + WAIT_S
        while (
            len(found := [int(pid) for path in self.held_at.iterdir() for pid in re.findall(r"\.(\d+)\.", path.name)])
            < count
        ):
            if time.monotonic() > until_s or self.process.poll() is not None:
                self.kill()
                raise AssertionError(f"not held: {self.log.read_text()[-3000:]}")
            time.sleep(0.01)
        return found

    def release(self) -> None:
        (self.held_at / "released").touch()

    def workers(self) -> list[psutil.Process]:
        """Its child processes: the one that forks, and those that it forked."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait(self) -> int:
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    FlowJob(**json.loads(Path(sys.argv[1]).read_text())).run()
