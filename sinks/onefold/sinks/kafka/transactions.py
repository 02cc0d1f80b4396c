"""Executors: transactions that are begun here and ended elsewhere, by a driver or by the broker's timeout.

Facts that this rests on (a real broker, docs/kafka-sink.md): `Producer.close` aborts an open transaction, while letting
go of a producer, ending the process and killing it all leave it open; `init_transactions` on an id aborts what is open
under it, or hides how it ended.
"""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold.core.contract import TaskId
from onefold.core.errors import OnefoldError, Retriable
from onefold.sinks.kafka import clients, errors, requests
from onefold.sinks.kafka.cluster import Cluster, cluster
from onefold.sinks.kafka.encoding import Records
from onefold.sinks.kafka.naming import Handle, Names
from onefold.sinks.kafka.plan import Settings
from onefold.sinks.kafka.progress import Progress

__all__ = ["Attempt"]

_LOOKS_MAX = 3
_ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")

# This process's ids: of one sink and generation, which epoch each number was last taken for. Kept for good, also of
# generations that are over: a task of theirs that wakes late must not begin anew under the id of a decided transaction.
_lock = threading.Lock()
_process = uuid.uuid4()
_epochs: dict[tuple[Names, int], list[int]] = {}


def _forget_parents() -> None:
    global _lock, _process
    _lock, _process = threading.Lock(), uuid.uuid4()
    _epochs.clear()


os.register_at_fork(after_in_child=_forget_parents)


def take_id(kafka: Cluster, names: Names, task: TaskId) -> str:
    """A transactional id for one attempt, and for no other until a later epoch runs.

    One of an earlier epoch is taken again where its transaction has ended: that epoch is complete or given up, since
    this one runs, so nobody needs to know any more how it ended.
    """
    with _lock:
        epochs = _epochs.setdefault((names, task.generation), [])
        earlier = [number for number, epoch in enumerate(epochs) if epoch < task.epoch][:_LOOKS_MAX]
        ids = {names.transactional_id(task.generation, _process, number): number for number in earlier}
        known = requests.describe(kafka, ids) if ids else {}
        for name, number in ids.items():
            if name not in known or known[name].state in _ENDED:
                epochs[number] = task.epoch
                return name
        epochs.append(task.epoch)
        return names.transactional_id(task.generation, _process, len(epochs) - 1)


class Attempt:
    """The transaction of one attempt. Begins with a record in the progress topic that says which epoch it is of."""

    def __init__(self, settings: Settings, task: TaskId) -> None:
        self._settings, self._task = settings, task
        self._where = f"{settings.where(task.pipeline)}, epoch {task.epoch}"
        self._kafka = cluster(*settings.cluster)
        self.id = take_id(self._kafka, settings.names(task.pipeline), task)
        failures: list[KafkaError] = []
        said: list[KafkaError] = []

        def failed(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        own = {
            "transactional.id": self.id,
            "transaction.timeout.ms": str(int(settings.transaction_timeout_s * 1000)),
        }
        config = clients.producer_config(settings.bootstrap_servers, settings.librdkafka, own)
        callbacks = {"on_delivery": failed, "error_cb": said.append, "logger": clients.LOGGER}
        self._failures, self._said = failures, said  # not through self: a cycle would keep the producer alive
        try:
            self._producer: Producer | None = Producer({**config, **callbacks})
        except KafkaException as error:
            raise clients.refused_by_client(error) from error

    def begin(self) -> None:
        producer = self._open()
        errors.asked(lambda: producer.init_transactions(self._settings.timeout_s), self._doing("beginning"))
        errors.asked(producer.begin_transaction, self._doing("beginning"))
        self._note(Progress.of(self._task))
        self.flush()

    def send(self, records: Records) -> None:
        """Hand these to the producer, in order; waits where its queue is full."""
        producer, topic = self._open(), self._settings.topic
        if self._failures:
            raise self._failed()
        rows = len(records.values)
        keys = [None] * rows if records.keys is None else records.keys

        def put(value: bytes | None, key: bytes | None, **more: Any) -> None:
            try:
                producer.produce(topic, value, key, **more)
            except BufferError:
                self._wait_for_room(producer)
                producer.produce(topic, value, key, **more)

        try:
            if records.is_plain:
                for value, key in zip(records.values, keys, strict=True):
                    put(value, key)
            else:
                headers = [None] * rows if records.headers is None else records.headers
                partitions = [-1] * rows if records.partitions is None else records.partitions
                timestamps = [0] * rows if records.timestamps is None else records.timestamps
                parts = zip(records.values, keys, headers, partitions, timestamps, strict=True)
                for value, key, header, partition, timestamp in parts:
                    put(value, key, headers=header or [], partition=partition, timestamp=timestamp)
        except KafkaException as error:
            raise errors.translate(error.args[0], self._doing("writing")) from error
        producer.poll(0)

    def prepare(self, rows: int) -> Handle:
        """All is with the brokers, and the transaction open, when this returns; whoever has the handle can end it."""
        self._note(Progress.of(self._task, rows))
        self.flush()
        found = requests.describe(self._kafka, [self.id]).get(self.id)
        if found is None or found.state != "Ongoing":
            state = found.state if found is not None else "gone"
            raise Retriable(f"{self._doing('preparing')}: its transaction is {state}, ended by a sweep or a timeout")
        self.let_go()
        return found.handle

    def abort(self) -> None:
        """End it here and now."""
        producer, self._producer = self._producer, None
        if producer is not None:
            errors.asked(lambda: producer.abort_transaction(self._settings.timeout_s), self._doing("aborting"))

    def let_go(self) -> None:
        """Leave the transaction open; `close` would abort it."""
        self._producer = None

    def flush(self) -> None:
        left = errors.asked(lambda: self._open().flush(self._settings.timeout_s), self._doing("flushing"))
        if self._failures:
            raise self._failed()
        if left:
            raise self._unanswered(f"{left} records were not acknowledged")

    def _note(self, progress: Progress) -> None:
        topic, value = self._settings.progress_topic, progress.to_json()
        errors.asked(lambda: self._open().produce(topic, value, self.id, partition=0), self._doing("noting progress"))

    def _open(self) -> Producer:
        assert self._producer is not None, "this attempt is over"
        return self._producer

    def _wait_for_room(self, producer: Producer) -> None:
        """Until half of what is queued is gone."""
        before = len(producer)
        progress = self._settings.timeout_s
        while len(producer) > before // 2:
            errors.asked(lambda: producer.poll(0.1), self._doing("writing"))
            progress -= 0.1
            if self._failures:
                raise self._failed()
            if progress < 0:
                raise self._unanswered("its queue stays full")

    def _failed(self) -> OnefoldError:
        return errors.first_failure(self._failures, self._doing("writing"))

    def _unanswered(self, what: str) -> OnefoldError:
        settings = self._settings
        return clients.unreachable(
            f"{self._doing('writing')}: {what}", settings.bootstrap_servers, settings.timeout_s, self._said
        )

    def _doing(self, what: str) -> str:
        return f"{self._where}, {what} transaction {self.id}"
