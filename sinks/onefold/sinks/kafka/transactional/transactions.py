"""The transaction of one attempt: the task begins it, and the driver or the broker's timeout ends it.

It rests on what a real broker does (docs/kafka-sink.md). `Producer.close` aborts an open transaction; to drop the
producer, or to end or kill its process, leaves the transaction open. `init_transactions` on an id aborts the open
transaction of that id, or hides how it ended.
"""

from __future__ import annotations

import uuid

from confluent_kafka import Producer

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.cluster import Cluster, cluster
from onefold.clients.per_process import PerProcess
from onefold.core.checks import present
from onefold.core.contract import TaskId
from onefold.core.errors import Retriable
from onefold.sinks.kafka.encoding import EncodedRecords
from onefold.sinks.kafka.naming import Handle, Names
from onefold.sinks.kafka.producer import RecordProducer, connect
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import AttemptRecord

__all__ = ["OpenTransaction", "initialize"]

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

    An id of an earlier epoch is used again once its transaction has ended. That epoch is complete or given up, since
    this one runs, so how the transaction ended no longer matters.
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


def initialize(producer: Producer, settings: KafkaSinkConfig, doing: str) -> None:
    """Call `init_transactions` so that it takes 60 ms and not 500.

    It asks for the coordinator at once, and again after 500 ms if no broker was connected by then. So we ask for
    metadata before, twice: librdkafka drops its first connection, to a bootstrap server, after the first answer.
    """
    for _ in range(2):
        connect(producer, settings, doing)
    error_codes.asked(lambda: producer.init_transactions(settings.timeout_s), doing)


class OpenTransaction:
    """The transaction of one attempt. Begins with a record in the ledger topic that says which epoch it is of."""

    def __init__(self, settings: KafkaSinkConfig, task: TaskId) -> None:
        self._settings, self._task = settings, task
        self._kafka = cluster(*settings.cluster)
        self.id = take_id(self._kafka, settings.names(task.pipeline), task)
        self._where = f"{settings.where(task.pipeline)}, epoch {task.epoch}, transaction {self.id}"
        own = {
            "transactional.id": self.id,
            "transaction.timeout.ms": str(int(settings.transaction_timeout_s * 1000)),
        }
        self._producer: RecordProducer | None = RecordProducer(settings, own, self._where)

    def begin(self) -> None:
        producer = self._open().client
        initialize(producer, self._settings, self._where)
        error_codes.asked(producer.begin_transaction, self._where)
        self._note(AttemptRecord.of(self._task))

    def send(self, records: EncodedRecords) -> None:
        self._open().send(self._settings.topic, records)

    def prepare(self, rows: int) -> Handle:
        """Flush all rows. The transaction is open then, and any process that has the handle can end it."""
        self._open().flush()  # a full queue would not take one more
        self._note(AttemptRecord.of(self._task, rows))
        found = txn_admin.describe(self._kafka, [self.id]).get(self.id)
        if found is None or found.state != "Ongoing":
            state = found.state if found is not None else "gone"
            raise Retriable(
                "transaction-ended-elsewhere",
                f"{self._where}: it is {state}, ended by a sweep or a timeout before it was prepared",
            )
        self._producer = None  # which leaves the transaction open: `close` would abort it
        return found.handle

    def abort(self) -> None:
        """Abort the transaction, if it is not prepared."""
        producer, self._producer = self._producer, None
        if producer is not None:
            error_codes.asked(lambda: producer.client.abort_transaction(self._settings.timeout_s), self._where)

    def _note(self, progress: AttemptRecord) -> None:
        """In the ledger topic; all that was sent is with the brokers when this returns."""
        producer, topic, value = self._open(), self._settings.ledger_topic(self._task.pipeline), progress.to_json()
        error_codes.asked(lambda: producer.client.produce(topic, value, self.id, partition=0), self._where)
        producer.flush()

    def _open(self) -> RecordProducer:
        return present(self._producer, "this attempt is over")
