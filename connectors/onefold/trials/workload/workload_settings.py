"""What the parts of a workload agree on: the topic, the table, and what a process of the pipeline is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onefold.clients.hbase.client_settings import HBaseSettings
from onefold.core import Sink
from onefold.core.writing.arrangement import EPOCH_COLUMN
from onefold.sinks import HBaseSink, KafkaSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.sources.kafka import POSITION_COLUMNS

TOPIC = "orders"
TABLE = "orders"
TOTALS = "totals"  # the table of what the orders of each account come to, which a flow keeps beside the others
WINDOWS = "windows"  # that of what the orders of a bucket of accounts come to by windows of time, in parts
SESSIONS = "sessions"  # that of those of a bucket that come close after each other
LATE = ("late_orders", "late_for_sessions")  # those of the orders that came too late for these
SECONDS = "seconds"  # that of how many a bucket has in each second, counted by timers
PAIRS = "pairs"  # small orders, each with those of its bucket that come soon after it
PARTITIONS = 4
SALES = "sales"  # the topic that is written, where the pipeline ends in Kafka
SALES_PARTITIONS = 3
GATE = "ONEFOLD_WORKLOAD_GATE"  # in a process' environment: the file that has to be there before it begins
LETTERS = "dead_orders"  # the topic of dead letters
INTO_KAFKA = ("transactional", "keyed")  # deliveries of the Kafka sink
INTO_HBASE = ("row_key", "rolling", "incremental")  # those of the HBase sink; the others are the Postgres sink's
ID_HEADER = "id"
SCHEMAS = {
    "append": "id long, account long, amount decimal(12,2), at timestamp",
    "upsert": "id long, version long, account long, amount decimal(12,2), at timestamp, gone boolean",
}
SHUFFLED_TASKS = 4
CELLS = "cells"  # the HBase sink, whose table has the name of the other sink's
REGIONS = 4  # of that table
ANSWER_S_MAX = 10.0  # longer than a Thrift server retries
_TOTALS = {"account": "account", "total": "amount", "largest": "amount", "orders": "id", "latest": "at"}
_CELLS = {  # the HBase sink's rows; those of one partition of the source have ids in the order of their offsets
    "row_key": {name: name for name in ("id", "version", "account", "amount", "at", "gone", *POSITION_COLUMNS.names)},
    "rolling": _TOTALS,
    "incremental": {**_TOTALS, "kafka_partition": "kafka_partition", "kafka_offset": "kafka_offset"},
}
_MERGE = {"total": "sum", "largest": "max", "orders": "count", "latest": "max"}


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of the pipeline is told: written to a file, so that its arguments fit on a line.

    It ends at the topic's end, or never if it is `continuous`. `shuffled` puts a shuffle into the plan. `spark` are
    further settings of the session. With the mode `upsert`, orders have versions, and some are deletions. With
    `bad_rows`, some become dead letters: those that Postgres refuses, in its `table`, or those that no order can be
    read from, in a `topic`. `deliveries` are the sinks', at most one for each system, and say which there are; a
    pipeline that doesn't end in Postgres has its checkpoint store at `store`.

    With `windows` it keeps the totals of each account, and windows and sessions of time, and writes these beside the
    orders; with `only_totals` those alone. With `workers` it is a flow on the embedded engine, not one on Spark:
    its `state` is the backend, and `mechanism` and `alignment` are what protects it.
    """

    bootstrap_servers: str
    postgres_url: str
    checkpoint: str
    directory: str
    deliveries: tuple[str, ...]
    rows_per_batch: int
    exactly_once: bool
    pipeline: str = "demo"
    master: str = "local[*]"
    continuous: bool = False
    shuffled: bool = False
    mode: str = "append"
    bad_rows: bool = False
    dead_letters: str = "table"
    store: str | None = None
    hbase_servers: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)
    windows: bool = False
    only_totals: bool = False
    workers: int = 0
    state: str = "memory"
    mechanism: str = "barriers"
    alignment: str = "aligned"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Job:
        told = json.loads(path.read_text())
        return cls(**{**told, "deliveries": tuple(told["deliveries"])})

    @property
    def outcomes(self) -> Path:
        """One JSON line for each batch that a process finished."""
        return Path(self.directory) / "outcomes.jsonl"

    @property
    def into_kafka(self) -> str | None:
        """The Kafka sink's delivery, if there is one."""
        return next((delivery for delivery in self.deliveries if delivery in INTO_KAFKA), None)

    @property
    def into_hbase(self) -> str | None:
        """The HBase sink's."""
        return next((delivery for delivery in self.deliveries if delivery in INTO_HBASE), None)

    @property
    def into_postgres(self) -> str | None:
        """The Postgres sink's."""
        others = (*INTO_KAFKA, *INTO_HBASE)
        return next((delivery for delivery in self.deliveries if delivery not in others), None)

    @property
    def on_engine(self) -> bool:
        return self.workers > 0

    @property
    def has_hops(self) -> bool:
        return self.mechanism == "transaction"

    @property
    def module(self) -> str:
        """What a process of the pipeline runs."""
        return f"onefold.trials.workload.{'flow_job' if self.on_engine else 'job'}"

    @property
    def cells_columns(self) -> Mapping[str, str] | None:
        """The columns of the rows for HBase, by the names that they have there; None for the orders as they are."""
        return _CELLS[self.into_hbase] if self.into_hbase else None

    @property
    def has_letters_topic(self) -> bool:
        return self.bad_rows and self.dead_letters == "topic"

    @property
    def has_letters_table(self) -> bool:
        return self.bad_rows and self.dead_letters == "table"

    def store_url(self) -> str:
        """Where the checkpoint store is."""
        url = self.store or self.sinks()[-1].store_url()
        assert url is not None, "a sink without a database, and no other store"
        return url

    def source(self, starting_offsets: str = "earliest") -> KafkaSource:
        return KafkaSource(
            TOPIC,
            bootstrap_servers=self.bootstrap_servers,
            format="json",
            schema=f"{SCHEMAS[self.mode]}, note string" if self.has_letters_table else SCHEMAS[self.mode],
            columns="position" if self.has_letters_table or self.into_kafka or self.into_hbase else (),
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=self.rows_per_batch,
            on_error="dead_letter" if self.has_letters_topic else "fail",
        )

    def sinks(self) -> tuple[Sink, ...]:
        """Of the orders; the dead letters' is another."""
        return (
            *((self.cells(),) if self.into_hbase else ()),
            *((self.sales(),) if self.into_kafka else ()),
            *((self.table(),) if self.into_postgres else ()),
        )

    def table(self) -> PostgresSink:
        more: dict[str, Any] = {"delivery": self.into_postgres}
        if self.mode == "upsert":
            more |= {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
        if self.has_letters_table:
            more |= {"on_error": "dead_letter", "source_position": POSITION_COLUMNS.names}
        return PostgresSink(self.postgres_url, table=TABLE, **more)

    def totals(self) -> PostgresSink:
        """Of a flow."""
        how: dict[str, Any] = {"mode": "upsert", "key": "account", "order": EPOCH_COLUMN, "delivery": "two_phase"}
        return PostgresSink(self.postgres_url, table=TOTALS, **how)

    def appended(self, table: str) -> PostgresSink:
        """Of what comes of windows: a row that comes twice is there twice."""
        return PostgresSink(self.postgres_url, table=table, delivery="two_phase")

    def letters(self) -> KafkaSink | None:
        """The sink of what cannot be read."""
        if not self.has_letters_topic:
            return None
        if self.into_kafka == "keyed":
            return self._topic(LETTERS, id=("source_topic", "source_partition", "source_offset"))
        return self._topic(LETTERS)

    def cells(self) -> HBaseSink:
        """Of the mode `row_key`, orders by their id; of the others, what the orders of an account come to."""
        hbase = HBaseSettings(self.hbase_servers, timeout_s=ANSWER_S_MAX)
        more: dict[str, Any] = {"family": "f", "mode": self.into_hbase, "regions": REGIONS, "name": CELLS}
        if self.into_hbase == "row_key":
            order = ("version", "kafka_partition", "kafka_offset")
            return HBaseSink(hbase, TABLE, row_key="id", salt=REGIONS, order=order, delete_when_true="gone", **more)
        more["merge"] = _MERGE
        if self.into_hbase == "rolling":
            return HBaseSink(hbase, TABLE, row_key="account", salt=REGIONS, **more)
        return HBaseSink(
            hbase, TABLE, row_key="account, kafka_partition", salt=REGIONS, sequence="kafka_offset", **more
        )

    def sales(self) -> KafkaSink:
        if self.into_kafka == "keyed":
            return self._topic(SALES, key="account", id=POSITION_COLUMNS.names, id_header=ID_HEADER)
        return self._topic(SALES, key="account")

    def _topic(self, topic: str, **more: Any) -> KafkaSink:
        more["delivery"] = self.into_kafka or "transactional"
        return KafkaSink(topic, bootstrap_servers=self.bootstrap_servers, **more)
