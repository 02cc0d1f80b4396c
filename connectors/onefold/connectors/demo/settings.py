"""What a demo runs with, and what its parts agree on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from onefold.sinks import PostgresSink
from onefold.sources import KafkaSource

__all__ = ["PIPELINE", "TABLE", "TOPIC", "DemoSettings", "Job"]

PIPELINE = "demo"
TOPIC = "orders"
TABLE = "orders"
PARTITIONS = 4
SCHEMA = "id long, account long, amount decimal(12,2), at timestamp"
BATCHES = 40


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of `onefold demo`."""

    rows: int = 2_000_000
    kills: int = 12
    delivery: str = "two_phase"
    seed: int = 1
    exactly_once: bool = True
    directory: Path = Path(".onefold/demo")


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of the pipeline is told: written to a file, so that its arguments fit on a line."""

    bootstrap_servers: str
    postgres_url: str
    checkpoint: str
    directory: str
    delivery: str
    rows_per_batch: int
    exactly_once: bool

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
            schema=SCHEMA,
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=self.rows_per_batch,
        )

    def sink(self) -> PostgresSink:
        return PostgresSink(self.postgres_url, table=TABLE, delivery=self.delivery)

    @staticmethod
    def transform(df: DataFrame) -> DataFrame:
        """The demo's transformation: some orders are refunds, which the table leaves out."""
        return df.where("amount > 0")
