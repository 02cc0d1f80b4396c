"""The ledger row of one sink of one pipeline: a compare-and-set on a topic."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from onefold.clients.kafka import error_codes
from onefold.clients.kafka.cluster import cluster
from onefold.core.checks import present
from onefold.core.contract import Binding, LedgerEntry
from onefold.core.errors import ConfigError, InDoubt, Retriable
from onefold.core.failpoints import failpoint
from onefold.core.protocol.binding import bound, check_forward
from onefold.core.waiting import Wait
from onefold.sinks.epoch_log import entry_to
from onefold.sinks.kafka.producer import initialize, opened
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.transaction_log import TransactionLog

log = logging.getLogger("onefold.sinks.kafka")

_TRIES_MAX = 5
_TRANSACTION_S = 60.0
_PROPAGATION_S = 5.0
_IDLE_EPOCHS = 100  # an id that was idle for so long is forgotten; its process may live, and use it again
_FORGOTTEN_MAX = 1000  # with one row


class Ledger:
    """Reads what the ledger topic says of a sink, and writes its ledger row.

    A writer first takes over the row's transactional id (`init_transactions`), which ends any transaction that another
    writer has begun under it. Then it reads the row, and writes the next. Until another writer takes the id over, the
    row stays as it was read; after that, every commit of this one fails.
    """

    def __init__(self, settings: KafkaSinkConfig, pipeline: str) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._names = settings.names(pipeline)
        self._kafka = cluster(*settings.cluster)
        self._log = TransactionLog(self._names)
        self._topic = settings.ledger_topic(pipeline)
        self._offset = 0
        self._producer: Producer | None = None  # where it is there, `_log.entry` is the row
        self._told: set[int | None] = set()

    def transactions(self) -> TransactionLog:
        """The log by all that the ledger topic holds now."""
        writer = txn_admin.describe(self._kafka, [self._names.ledger]).get(self._names.ledger)
        self._log.writer = None if writer is None else writer.handle.producer_id
        for items, offset in txn_admin.read_log(self._kafka, self._topic, self._offset):
            self._log.add(items)
            self._offset = offset
        if self._log.was_keyed:
            raise ConfigError(
                "delivery-changed",
                f"{self._where()} has written with delivery='keyed' before, and what its notes say is of no"
                " transactions: give the sink another name= for delivery='transactional'",
            )
        self._tell()
        return self._log

    def _tell(self) -> None:
        """Warn, once each, of records that this sink did not write, and of a row whose writer Kafka has forgotten."""
        transactions = self._log
        if transactions.ignored:
            log.warning(
                "%s: %d records under its keys in the topic %r that no sink wrote are passed over (%s). Let nobody but"
                " the pipeline write to that topic (docs/security.md)",
                self._where(),
                transactions.ignored.total(),
                self._topic,
                ", ".join(transactions.ignored),
            )
            transactions.ignored.clear()
        if transactions.last_writer in (None, transactions.writer, *self._told):
            return
        self._told.add(transactions.last_writer)
        if transactions.is_proven:
            log.warning(
                "%s: the topic %r has a ledger row of producer %d, which is not this sink's: it is passed over. Let"
                " nobody but the pipeline write to that topic (docs/security.md)",
                self._where(),
                self._topic,
                transactions.last_writer,
            )
        else:
            log.warning(
                "%s: Kafka no longer knows whose producer %d was, which wrote the ledger row in the topic %r. The row"
                " is believed: after a week's rest that is as it should be, where nobody but the pipeline may write to"
                " that topic (docs/security.md)",
                self._where(),
                transactions.last_writer,
                self._topic,
            )

    def transactions_once_marked(self) -> TransactionLog:
        """The same, once the markers of every ended transaction of this sink are written: the log then holds all that a
        reader of the topic has seen."""
        wait = Wait(_PROPAGATION_S, pause_s=0.01, pause_max_s=0.05)
        while ending := txn_admin.list_ids(self._kafka, self._names.ids, "PrepareCommit"):
            if not wait.again():
                raise Retriable(
                    "transaction-markers-pending",
                    f"{self._where()}: the markers of transaction {ending[0]} are still being written",
                )
        return self.transactions()

    def bind(self, binding: Binding) -> None:
        """Make the row that generation's. Raises Fenced, CheckpointMismatch, or InDoubt."""
        sink = self._settings.name
        self._write(lambda there: bound(there, binding, sink), f"binding the ledger to generation {binding.generation}")

    def write_ledger(self, entry: LedgerEntry) -> None:
        """Write the row. Raises Fenced where a newer one is there, InDoubt where it is not known what became of it."""

        def forward(there: LedgerEntry | None) -> LedgerEntry:
            check_forward(there, entry, self._settings.name)
            return entry

        self._write(forward, f"writing the ledger row of epoch {entry.epoch}")

    def _write(self, follow: Callable[[LedgerEntry | None], LedgerEntry], doing: str) -> None:
        """Write the row that follows the present one, which is read anew for each try."""
        because: BaseException | None = None
        for _ in range(_TRIES_MAX):
            producer = self._producer if self._producer is not None else self._take_over()
            there = self._log.entry
            entry = follow(there)
            if there == entry:
                return
            outlived = self._outlived()
            self._producer = None  # until it is known that the row is there
            try:
                producer.begin_transaction()
                producer.produce(self._topic, entry_to(entry), self._names.ledger, partition=0)
                for name in outlived:
                    producer.produce(self._topic, None, name, partition=0)
                failpoint("kafka:ledger")
                producer.commit_transaction(self._settings.timeout_s)
            except (KafkaException, SystemError) as error:
                because = error
                if error_codes.is_fenced(error):
                    continue
                if isinstance(refusal := error_codes.of(error, f"{self._where()}, {doing}"), ConfigError):
                    raise refusal from error
                break
            self._log.stands(entry, present(self._log.writer, "the id was taken over without its writer"))
            self._producer = producer
            return
        raise InDoubt("ledger-write-unanswered", f"{self._where()}, {doing}: {because}") from because

    def _outlived(self) -> list[str]:
        """The ids to forget along with the next row. They are of epochs below the present row, so it does no harm if
        the next one is never written."""
        there = self._log.entry
        if there is None or not self._log.idle_ids(there.epoch - _IDLE_EPOCHS):
            return []
        # Once more, with all that was said since: the epoch that is being completed may have taken some of them again.
        return self.transactions().idle_ids(there.epoch - _IDLE_EPOCHS)[:_FORGOTTEN_MAX]

    def close(self) -> None:
        self._producer = None  # it has no transaction open

    def _take_over(self) -> Producer:
        own = {
            "transactional.id": self._names.ledger,
            "transaction.timeout.ms": str(int(min(_TRANSACTION_S, self._settings.transaction_timeout_s) * 1000)),
            "linger.ms": "0",
        }
        doing = f"{self._where()}, taking over the ledger"
        producer = opened(self._settings, own)
        initialize(producer, self._settings, doing)
        self.transactions()
        self._producer = producer
        return producer

    def _where(self) -> str:
        return self._settings.where(self._pipeline)
