"""delivery="keyed": every record carries a unique id, is written at least once, and is the same whenever it is written.

Each task has an idempotent producer. The driver notes in the ledger topic which epoch is begun, written and complete.
Readers drop repeated records by their ids.
"""

from __future__ import annotations

import pyarrow as pa

from onefold.core.checks import present
from onefold.core.contract import Guarantee, SinkKind, TaskId
from onefold.sinks.kafka.keyed_epoch_log import TopicEpochLog
from onefold.sinks.kafka.keyed_ids import IdOrder
from onefold.sinks.kafka.producer import RecordProducer
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.write_through import AnnouncingCommitter, ErrorNames, WritingThrough

__all__ = ["KEYED", "KeyedWriter", "keyed_committer"]

KEYED = Guarantee(
    "keyed",
    SinkKind.WRITE_THROUGH,
    False,
    (
        "readers drop the records whose id they have seen (stream.deduplicate of a flow): each may be there repeatedly",
        "ids are unique, and those of one source of ids are in one task, in their order",
        "the transformation is deterministic and its code unchanged between replays, and the source still has an epoch "
        "that was begun: it cannot be given up, only written again",
        "no partitions are added to the topic while an epoch is open: what is written again would go elsewhere",
        "both topics keep what they acknowledged (min.insync.replicas from 2 on, no unclean leader election)",
    ),
)


class KeyedWriter(WritingThrough):
    """Writes one attempt of one task. Readers see its records as they are written."""

    def __init__(self, settings: KafkaSinkConfig, schema: pa.Schema, task: TaskId) -> None:
        super().__init__(settings.name, task, schema)
        self._settings = settings
        self._producer: RecordProducer | None = None
        self._order = IdOrder()

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._producer is None:
            self._producer = RecordProducer.borrowed(self._settings, f"{self._where}, writing")
        for records in self._settings.ids.records(self._settings.encoding, batch, self._order):
            self._producer.send(self._settings.topic, records)
            self._bytes += records.bytes

    def _finish(self) -> None:
        producer = present(self._producer, "rows came, and no producer that sent them")
        producer.flush()
        producer.give_back()
        self._producer = None

    def _undo(self) -> None:
        """Drop what was not sent. What was sent stays: the epoch is written again."""
        self._producer = None


def keyed_committer(settings: KafkaSinkConfig, pipeline: str) -> AnnouncingCommitter:
    """The driver's committer: it notes in the ledger topic which epoch is begun, written and complete."""
    names = ErrorNames(
        sink=settings.name,
        where=settings.where(pipeline),
        ledger=f"the topic {settings.ledger_topic(pipeline)!r}",
        target=f"the topic {settings.topic!r}",
        servers="the brokers are",
    )
    return AnnouncingCommitter(names, TopicEpochLog(settings, pipeline), settings.ids.columns)
