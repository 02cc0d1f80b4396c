"""One life of a pipeline into Kafka without Spark: `python -m harness.kafka.life SERVERS TOPIC STORE EPOCHS`.

Goes on where the destination stands, up to so many epochs, of ten rows in two tasks each.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from harness.pipeline_drivers import Epochs

from onefold.sinks import KafkaSink

__all__ = ["SCHEMA", "batches", "live"]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batches(epoch: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """What the two tasks of an epoch write: ids 0 to 9 in the first, 10 to 19 in the second."""
    ids = range(10 * epoch, 10 * epoch + 10)
    first, second = (
        pa.record_batch({"id": pa.array(part, pa.int64()), "name": ["x"] * 5}) for part in (ids[:5], ids[5:])
    )
    return first, second


def live(sink: KafkaSink, store: str, epochs: int) -> None:
    with Epochs(sink, SCHEMA, store=store) as life:
        while life.at < epochs:
            life.run(*batches(life.at))


if __name__ == "__main__":
    servers, topic, store, epochs = sys.argv[1:]
    live(KafkaSink(topic, bootstrap_servers=servers, key="id"), store, int(epochs))
