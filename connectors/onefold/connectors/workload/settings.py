"""What the parts of a workload agree on: the topic, the table, and what a process of the pipeline is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from onefold.core import Sink
from onefold.sinks import KafkaSink, PostgresSink
from onefold.sources import KafkaSource
from onefold.sources.kafka import POSITION_COLUMNS

__all__ = ["INTO_KAFKA", "LETTERS", "PARTITIONS", "SALES", "SALES_PARTITIONS", "TABLE", "TOPIC", "Job"]

TOPIC = "orders"
TABLE = "orders"
PARTITIONS = 4
SALES = "sales"  # the topic that is written, where the pipeline ends in Kafka
SALES_PARTITIONS = 3
LETTERS = "dead_orders"  # the topic of dead letters
INTO_KAFKA = ("transactional", "keyed")  # deliveries of the Kafka sink; the others are the Postgres sink's
ID_HEADER = "id"
SCHEMAS = {
    "append": "id long, account long, amount decimal(12,2), at timestamp",
    "upsert": "id long, version long, account long, amount decimal(12,2), at timestamp, gone boolean",
}
SHUFFLED_TASKS = 4


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of the pipeline is told: written to a file, so that its arguments fit on a line.

    It ends at the topic's end, or never if it is `continuous`. `shuffled` puts a shuffle into the plan. `spark` are
    further settings of the session. With the mode `upsert`, orders have versions, and some are deletions. With
    `bad_rows`, some become dead letters: those that Postgres refuses, in its `table`, or those that no order can be
    read from, in a `topic`. `delivery` says into what, too; a pipeline into Kafka has its checkpoint store at `store`.
    """

    bootstrap_servers: str
    postgres_url: str
    checkpoint: str
    directory: str
    delivery: str
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
    spark: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text()))

    @property
    def outcomes(self) -> Path:
        """One JSON line for each batch that a process finished."""
        return Path(self.directory) / "outcomes.jsonl"

    @property
    def is_into_kafka(self) -> bool:
        return self.delivery in INTO_KAFKA

    @property
    def has_letters_topic(self) -> bool:
        return self.bad_rows and self.dead_letters == "topic"

    @property
    def has_letters_table(self) -> bool:
        return self.bad_rows and self.dead_letters == "table"

    def store_url(self) -> str:
        """Where the checkpoint store is."""
        url = self.store or self.sink().store_url()
        assert url is not None, "a sink without a database, and no other store"
        return url

    def source(self, starting_offsets: str = "earliest") -> KafkaSource:
        return KafkaSource(
            TOPIC,
            bootstrap_servers=self.bootstrap_servers,
            format="json",
            schema=f"{SCHEMAS[self.mode]}, note string" if self.has_letters_table else SCHEMAS[self.mode],
            positions=self.has_letters_table or self.is_into_kafka,
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=self.rows_per_batch,
            on_error="dead_letter" if self.has_letters_topic else "fail",
        )

    def sink(self) -> Sink:
        return self.sales() if self.is_into_kafka else self.table()

    def table(self) -> PostgresSink:
        more: dict[str, Any] = {}
        if self.mode == "upsert":
            more |= {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
        if self.has_letters_table:
            more |= {"on_error": "dead_letter", "source_position": POSITION_COLUMNS.names}
        return PostgresSink(self.postgres_url, table=TABLE, delivery=self.delivery, **more)

    def letters(self) -> KafkaSink | None:
        """The sink of what cannot be read."""
        if not self.has_letters_topic:
            return None
        if self.delivery == "keyed":
            return self._topic(LETTERS, id=("source_topic", "source_partition", "source_offset"))
        return self._topic(LETTERS)

    def transform(self, df: DataFrame) -> DataFrame:
        """Some orders are refunds, which are left out."""
        orders = df.where("amount > 0")
        if not self.shuffled:
            return orders
        # The ids of mode="keyed" count the records of a partition of the source: these stay together, in their order.
        together = POSITION_COLUMNS.names[1] if self.delivery == "keyed" else "account"
        return orders.repartition(SHUFFLED_TASKS, together)

    def sales(self) -> KafkaSink:
        if self.delivery == "keyed":
            return self._topic(SALES, key="account", id=POSITION_COLUMNS.names, id_header=ID_HEADER)
        return self._topic(SALES, key="account")

    def _topic(self, topic: str, **more: Any) -> KafkaSink:
        mode = "keyed" if self.delivery == "keyed" else "transactional"
        return KafkaSink(topic, bootstrap_servers=self.bootstrap_servers, mode=mode, **more)
