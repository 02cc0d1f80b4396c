"""What the parts of a workload agree on: the topic, the table, and what a process of the pipeline is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource
from onefold.sources.kafka import POSITION_COLUMNS

__all__ = ["PARTITIONS", "TABLE", "TOPIC", "Job"]

TOPIC = "orders"
TABLE = "orders"
PARTITIONS = 4
SCHEMAS = {
    "append": "id long, account long, amount decimal(12,2), at timestamp",
    "upsert": "id long, version long, account long, amount decimal(12,2), at timestamp, gone boolean",
}
SHUFFLED_TASKS = 4


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of the pipeline is told: written to a file, so that its arguments fit on a line.

    It ends at the topic's end, or never if it is `continuous`. `shuffled` puts a shuffle into the plan. `spark` are
    further settings of the session. With the mode `upsert`, orders have versions, and some are deletions; with
    `bad_rows`, those that Postgres refuses become dead letters.
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

    def source(self, starting_offsets: str = "earliest") -> KafkaSource:
        return KafkaSource(
            TOPIC,
            bootstrap_servers=self.bootstrap_servers,
            format="json",
            schema=f"{SCHEMAS[self.mode]}, note string" if self.bad_rows else SCHEMAS[self.mode],
            positions=self.bad_rows,
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=self.rows_per_batch,
        )

    def sink(self) -> PostgresSink:
        more: dict[str, Any] = {}
        if self.mode == "upsert":
            more |= {"mode": "upsert", "key": "id", "order": "version", "delete_when_true": "gone"}
        if self.bad_rows:
            more |= {"on_error": "dead_letter", "source_position": POSITION_COLUMNS.names}
        return PostgresSink(self.postgres_url, table=TABLE, delivery=self.delivery, **more)

    def transform(self, df: DataFrame) -> DataFrame:
        """Some orders are refunds, which the table leaves out."""
        orders = df.where("amount > 0")
        return orders.repartition(SHUFFLED_TASKS, "account") if self.shuffled else orders
