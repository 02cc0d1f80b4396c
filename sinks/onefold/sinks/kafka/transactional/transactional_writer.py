"""The transactional writer of a task, whose transaction the driver or the broker's timeout ends.

It rests on what a real broker does (docs/kafka-sink.md). `Producer.close` aborts an open transaction; to drop the
producer, or to end or kill its process, leaves the transaction open. `init_transactions` on an id aborts the open
transaction of that id, or hides how it ended.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.cluster import Cluster, cluster
from onefold.clients.per_process import PerProcess
from onefold.core.checks import present
from onefold.core.contract import SinkKind, TaskId
from onefold.core.errors import Retriable
from onefold.core.failpoints import failpoint
from onefold.sinks.kafka.naming import Names
from onefold.sinks.kafka.producer import RecordProducer, initialize
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import AttemptRecord
from onefold.sinks.sink_writer import AttemptWriter

_LOOKS_MAX = 3
_ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


class _Ids:
    """This process's ids: of one sink and generation, which epoch each number was last taken for.

    Kept for good, also of generations that are over: a task of theirs that wakes late must not begin anew under the id
    of a decided transaction.
    """

    def __init__(self) -> None:
        self.process = uuid.uuid4()
        self.epochs: dict[tuple[Names, int], list[int]] = {}


_ids = PerProcess(_Ids)


def take_id(kafka: Cluster, names: Names, task: TaskId) -> str:
    """A transactional id for one attempt, and for no other until a later epoch runs.

    An id of an earlier epoch is used again once its transaction has ended. That epoch is committed, since this
    one runs, so how the transaction ended no longer matters.
    """
    with _ids.lock:
        ours = _ids.now
        epochs = ours.epochs.setdefault((names, task.generation), [])
        earlier = [number for number, epoch in enumerate(epochs) if epoch < task.epoch][:_LOOKS_MAX]
        ids = {names.transactional_id(task.generation, ours.process, number): number for number in earlier}
        known = txn_admin.describe(kafka, ids) if ids else {}
        for name, number in ids.items():
            if name not in known or known[name].state in _ENDED:
                epochs[number] = task.epoch
                return name
        epochs.append(task.epoch)
        return names.transactional_id(task.generation, ours.process, len(epochs) - 1)


class TransactionalWriter(AttemptWriter):
    """Writes one attempt of one task. It begins a transaction with the first row; an empty task begins none.

    The transaction begins with a record in the ledger topic that says which epoch it is of. Once it is prepared, any
    process that has the handle can end it.
    """

    def __init__(self, settings: KafkaSinkConfig, schema: pa.Schema, task: TaskId) -> None:
        super().__init__(settings.name, SinkKind.TWO_PHASE, task, schema)
        self._settings = settings
        self._kafka = cluster(*settings.cluster)
        self._id = ""
        self._producer: RecordProducer | None = None

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._producer is None:
            self._begin()
        for records in self._settings.encoding.records(batch):
            self._open().send(self._settings.topic, records)
            self._bytes += records.bytes

    def _prepare(self) -> str:
        self._open().flush()  # a full queue would not take one more
        self._note(AttemptRecord.of(self._task, self._rows))
        found = txn_admin.describe(self._kafka, [self._id]).get(self._id)
        if found is None or found.state != "Ongoing":
            state = found.state if found is not None else "gone"
            raise Retriable(
                "transaction-ended-elsewhere",
                f"{self._doing}: it is {state}, ended by a sweep or a timeout before it was prepared",
            )
        self._producer = None  # which leaves the transaction open: `close` would abort it
        return str(found.handle)

    def _undo(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            error_codes.asked(lambda: producer.client.abort_transaction(self._settings.timeout_s), self._doing)

    def _begin(self) -> None:
        settings, task = self._settings, self._task
        self._id = take_id(self._kafka, settings.names(task.pipeline), task)
        timeout_ms = str(int(settings.transaction_timeout_s * 1000))
        own = {"transactional.id": self._id, "transaction.timeout.ms": timeout_ms}
        self._producer = RecordProducer(settings, own, self._doing)
        client = self._producer.client
        initialize(client, settings, self._doing)
        error_codes.asked(client.begin_transaction, self._doing)
        self._note(AttemptRecord.of(task))
        failpoint("kafka:begun")

    def _note(self, progress: AttemptRecord) -> None:
        """In the ledger topic; all that was sent is with the brokers when this returns."""
        producer, topic, value = self._open(), self._settings.ledger_topic(self._task.pipeline), progress.to_json()
        error_codes.asked(lambda: producer.client.produce(topic, value, self._id, partition=0), self._doing)
        producer.flush()

    def _open(self) -> RecordProducer:
        return present(self._producer, "rows came, and no transaction that has them")

    @property
    def _doing(self) -> str:
        return f"{self._where}, transaction {self._id}"
