"""delivery="keyed": every record carries a unique id, is written at least once, and is the same whenever it is written.

Each task has an idempotent producer. The driver notes in the ledger topic which epoch is begun, written and complete.
Readers drop repeated records by their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.cluster import cluster
from onefold.core.checks import present
from onefold.core.contract import Guarantee, SinkKind, TaskId
from onefold.core.errors import CheckpointMismatch, ConfigError, InDoubt
from onefold.core.failpoints import failpoint
from onefold.sinks.epoch_log import LedgerState, Unreadable
from onefold.sinks.kafka.keyed_ids import IdOrder
from onefold.sinks.kafka.naming import LEDGER_PREFIX
from onefold.sinks.kafka.producer import RecordProducer, connect, opened
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.topics import Topics
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import LogRecord
from onefold.sinks.write_through import AnnouncingCommitter, ErrorNames, WritingThrough

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


log = logging.getLogger("onefold.sinks.kafka")


class TopicEpochLog:
    """The epoch log of one sink of one pipeline, in the ledger topic. Every call may be repeated, by any process.

    It needs no transactions. Each generation of a pipeline writes under a key of its own, and each record holds the
    whole state that its writer knew. The state that counts is the furthest of all keys' last records, by epoch, then
    generation. So a record that lands late changes nothing that is beyond it, and compaction keeps what counts. After
    a record of a newer generation, records of older ones do not count. A writer reads before it writes, and again
    after: it is fenced if another one went further.
    """

    def __init__(self, settings: KafkaSinkConfig, pipeline: str) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._names = settings.names(pipeline)
        self._topic = settings.ledger_topic(pipeline)
        self._kafka = cluster(*settings.cluster)
        self._others: dict[str, LedgerState] = {}  # of sinks of that name in other pipelines
        self._state = LedgerState()
        self._unreadable: dict[str, str] = {}  # why, by key, where that has not been written anew
        self._generations: set[int] = set()  # whose keys are there
        self._wrote: int | None = None  # as which generation this process did last
        self._offset = 0
        self._producer: Producer | None = None

    def read(self) -> LedgerState:
        """The state by all that the ledger topic holds now."""
        for items, offset in txn_admin.read_log(self._kafka, self._topic, self._offset):
            for item in items:
                if isinstance(item, LogRecord):
                    self._take(item)
            self._offset = offset
        if self._unreadable:
            key, why = next(iter(self._unreadable.items()))
            raise CheckpointMismatch(
                "ledger-unreadable",
                f"{self._settings.where(self._pipeline)}: the note under {key!r} in the topic {self._topic!r} is none"
                f" that a sink wrote ({why}), so nobody can tell what it hides. Let nobody but the pipeline write to"
                " that topic (docs/security.md), write a tombstone under that key, and start again: what the log says"
                " besides is compared with the store",
            )
        return self._state

    def others(self) -> Mapping[str, LedgerState]:
        self.read()
        if self._settings.ledger is None:
            topics = Topics(self._settings, self._pipeline)
            for topic in topics.named(LEDGER_PREFIX):
                if topic != self._topic and topics.may_read(topic):
                    for items, _ in txn_admin.read_log(self._kafka, topic, 0):
                        self._take_others(item for item in items if isinstance(item, LogRecord))
        return dict(self._others)

    def write(self, state: LedgerState, generation: int) -> LedgerState:
        """Note it, and return the state that counts then: this one, unless another writer went further.

        Raises InDoubt where it is not known whether it was noted: then the next note goes through the same producer,
        so that the first cannot land behind it.
        """
        if self._state.generation > generation:
            return self._state
        whole = self._state.joined(state).to_json()
        failures: list[KafkaError] = []

        def failed(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            producer = self._open()

            def put(value: bytes | None, of: int) -> None:
                producer.produce(self._topic, value, f"{self._names.notes}{of}", partition=0, on_delivery=failed)

            put(whole, generation)
            failpoint("kafka:noted")
            left = producer.flush(self._settings.timeout_s)
            for older in sorted(self._generations):
                # From the first note of a generation on the older ones' count for nothing; and what they said before
                # that was read after it, and is in what was just noted.
                if older < generation == self._wrote and not left and not failures:
                    put(None, older)
        except KafkaException as error:
            raise InDoubt("ledger-write-unanswered", f"{self._doing(generation)}: {error}") from error
        if failures:
            if isinstance(refusal := error_codes.translate(failures[0], self._doing(generation)), ConfigError):
                raise refusal
            if any(failure.fatal() for failure in failures):
                self._producer = None
        if left or failures:
            why = failures[0].str() if failures else f"{self._settings.timeout_s:g} s have passed"
            raise InDoubt("ledger-write-unanswered", f"{self._doing(generation)}: {why}")
        self._wrote = generation
        return self.read()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._settings.timeout_s)
        self._producer = None

    def _take(self, record: LogRecord) -> None:
        if record.key == self._names.ledger:
            raise ConfigError(
                "delivery-changed",
                f"{self._settings.where(self._pipeline)} has written with delivery='transactional' before, and what its"
                " ledger says is of transactions: give the sink another name= for delivery='keyed'",
            )
        generation = self._names.noted(record.key)
        if generation is not None:
            self._unreadable.pop(record.key, None)
            if record.value is None:
                self._generations.discard(generation)
                return
            try:
                said = LedgerState.from_json(record.value)
            except Unreadable as error:
                self._unreadable[record.key] = str(error)
            else:
                self._generations.add(generation)
                self._state = self._state.after(said, generation)
        else:
            self._take_others([record])

    def _take_others(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            other = self._names.pipeline_of(record.key)
            if record.value is None or other in (None, self._pipeline):
                continue
            try:
                said = LedgerState.from_json(record.value)
            except Unreadable as error:
                log.warning("a note of pipeline %r that no sink wrote is passed over: %s", other, error)
            else:
                self._others[other] = self._others.get(other, LedgerState()).joined(said)

    def _open(self) -> Producer:
        if self._producer is None:
            settings = self._settings
            own = {"linger.ms": "0", "message.timeout.ms": str(int(settings.timeout_s * 1000))}
            self._producer = opened(settings, own)
            connect(self._producer, settings, f"{settings.where(self._pipeline)}, connecting")
        return self._producer

    def _doing(self, generation: int) -> str:
        where = self._settings.where(self._pipeline)
        return f"{where}, noting as generation {generation} in the topic {self._topic!r}"
