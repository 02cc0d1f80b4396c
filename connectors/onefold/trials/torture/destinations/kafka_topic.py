"""A topic that the pipeline writes to, as an audit asks Kafka about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from onefold.core import Committable, Committer, EpochRecord, LedgerEntry, OnefoldError, SinkKind
from onefold.sinks import KafkaSink
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.kafka_comparison import compare_letters, compare_sales
from onefold.trials.torture.destinations.kafka_reading import TopicLog, TopicRecord, open_transactions, unstable
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.run_setup import create_topic
from onefold.trials.workload.workload_settings import SALES_PARTITIONS, Job

Compare = Callable[[DueRecords, Collection[TopicRecord]], Compared]


def sales_topic(job: Job) -> KafkaTopic:
    """Of a pipeline into Kafka."""
    is_keyed = job.into_kafka == "keyed"

    def compare(due: DueRecords, records: Collection[TopicRecord]) -> Compared:
        return compare_sales(due, records, SALES_PARTITIONS, keyed=is_keyed)

    return KafkaTopic(job.sales(), SALES_PARTITIONS, is_keyed, compare)


def letters_topic(job: Job) -> KafkaTopic:
    """Of a pipeline whose bad records go to a topic."""
    is_keyed = job.into_kafka == "keyed"
    sink = job.letters()
    assert sink is not None

    def compare(due: DueRecords, records: Collection[TopicRecord]) -> Compared:
        return compare_letters(due, records, keyed=is_keyed)

    return KafkaTopic(sink, SALES_PARTITIONS, is_keyed, compare)


@dataclass
class KafkaTopic:
    """A Destination."""

    sink: KafkaSink
    partitions: int
    writes_through: bool
    compare: Compare
    _committer: Committer | None = None
    _parts: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = self.sink.settings
        self.name = settings.name
        self._servers, self._topic = settings.bootstrap_servers, settings.topic
        self._ledger = settings.ledger_topic(PIPELINE)
        self._ids = settings.names(PIPELINE)
        self._prefix = f"{settings.transactional_id_prefix}/"
        self._log = TopicLog(self._servers, self._topic, self.partitions)
        self._ledger_log = TopicLog(self._servers, self._ledger, 1)

    def create(self) -> None:
        create_topic(self._servers, self._topic, self.partitions)

    def ledger(self) -> LedgerEntry | None:
        """Kept open between calls: it reads on from where it stood."""
        if self._committer is None:
            self._committer = self.sink.recover(PIPELINE)
        try:
            return self._committer.ledger()
        except OnefoldError:
            self.close()
            raise

    def look(self, due: DueRecords) -> Compared:
        return self.compare(due, self._log.read())

    def leftovers(self) -> tuple[Committable, ...]:
        """Transactions of any onefold sink that have not ended, and partitions that something holds back."""
        held = unstable(self._servers, {self._topic: self.partitions, self._ledger: 1})
        names = [*open_transactions(self._servers, self._prefix), *held]
        return tuple(Committable(self.name, SinkKind.TWO_PHASE, name, 0, 0, 0) for name in names)

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        """What committed transactions have said of themselves in the ledger topic, under the manifests' handles.

        A transactional id is taken again only for a later epoch. A manifest's handle says which producer's it was, too,
        which no consumer sees.
        """
        if self.writes_through:
            return CommittedParts(())
        for record in self._ledger_log.read():
            id_ = (record.key or b"").decode()
            if id_.startswith(self._ids.ids) and id_ != self._ids.ledger and record.value is not None:
                said = json.loads(record.value)
                self._parts[said["epoch"], id_] = said["generation"]
        handles = {(e.epoch, c.handle.rpartition("#")[0]): c.handle for e in epochs for c in e.manifest}
        return CommittedParts(
            tuple(
                Committable(self.name, SinkKind.TWO_PHASE, handles.get((epoch, id_), id_), generation, epoch, 0)
                for (epoch, id_), generation in self._parts.items()
            )
        )

    def close(self) -> None:
        if self._committer is not None:
            self._committer.close()
            self._committer = None
