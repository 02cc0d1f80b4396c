"""The transactional committer in the driver: it ends the transactions that tasks have left open."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from onefold.clients.kafka.cluster import cluster
from onefold.clients.kafka.error_codes import DENIED
from onefold.core.contract import Binding, Committable, CommittedPart, Decided, EpochRecord, LedgerEntry, SinkKind
from onefold.core.errors import Damaged, InDoubt, Retriable, WorkLost
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.core.waiting import Wait
from onefold.sinks.kafka.naming import Handle
from onefold.sinks.kafka.sink_options import KafkaSinkConfig
from onefold.sinks.kafka.transactional import txn_admin
from onefold.sinks.kafka.transactional.ledger import Ledger
from onefold.sinks.kafka.transactional.transaction_log import TransactionLog
from onefold.sinks.kafka.transactional.txn_admin import TopicTransaction

log = logging.getLogger("onefold.sinks.kafka")

_JUST_BEGUN_S = 5.0  # a transaction this young may be about to say which epoch it is of
_ENDING_S = 5.0
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class TransactionalCommitter:
    """Commits, aborts and finds the transactions of one sink of one pipeline. Idempotent, from any process."""

    def __init__(self, settings: KafkaSinkConfig, pipeline: str) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._names = settings.names(pipeline)
        self._kafka = cluster(*settings.cluster)
        self._ledger = Ledger(settings, pipeline)

    def verify(self, committables: Sequence[Committable]) -> None:
        handles = {Handle.parse(c.handle): c for c in committables}
        known = txn_admin.describe(self._kafka, [handle.transactional_id for handle in handles])
        for handle, committable in handles.items():
            found = known.get(handle.transactional_id)
            if found is None or found.state != "Ongoing" or found.handle != handle:
                raise WorkLost(
                    "prepared-work-gone",
                    f"{self._where()}, epoch {committable.epoch}: transaction {handle} is gone before the decision "
                    f"({_state(found)}): its timeout of {self._settings.transaction_timeout_s:g} s has passed, or "
                    "somebody ended it. The epoch's writers must run again",
                )
            left_s = (found.started_ms + found.timeout_ms) / 1000 - time.time()
            if left_s < self._settings.outage_s:
                raise WorkLost(
                    "transaction-about-to-expire",
                    f"{self._where()}, epoch {committable.epoch}: transaction {handle} has {left_s:.0f} s left of its "
                    f"{found.timeout_ms / 1000:g} s, and outage_max_s asks for {self._settings.outage_s:g} s when "
                    "the epoch is decided. Its writers must run again; where they always take that long, make epochs "
                    "smaller, raise transaction_timeout_s (and the brokers' transaction.max.timeout.ms), or lower "
                    "outage_max_s",
                )

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        refused = self._end([Handle.parse(c.handle) for c in committables], commit=True)
        self._abort_unnamed(decided.record)
        if not refused:
            return
        transactions = self._ledger.transactions_once_marked()
        refused = [handle for handle in refused if not transactions.is_committed(handle, decided.record.epoch)]
        gone = [c for c in committables if Handle.parse(c.handle) in refused]
        if not gone:
            return
        if undecided := [c for c in gone if transactions.is_open(Handle.parse(c.handle))]:
            raise InDoubt(
                "transaction-end-unknown",
                f"{self._where()}, epoch {decided.record.epoch}: transaction {undecided[0].handle} can no longer be "
                "committed, and how it ends is not in the log yet",
            )
        raise Damaged("decided-work-gone", self._evidence(decided, committables, gone, transactions))

    def abort(self, committables: Sequence[Committable]) -> None:
        # What is refused has ended already, or its id is another transaction's by now.
        self._end([Handle.parse(c.handle) for c in committables], commit=False)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        """Transactions that are open, prepared or not: the record that each begins with says which epoch it is of."""
        ids = {}
        for name in txn_admin.list_ids(self._kafka, self._names.ids, "Ongoing"):
            generation = self._names.generation(name)
            if generation is not None and generation <= up_to_generation:
                ids[name] = generation
        known = txn_admin.describe(self._kafka, ids)
        transactions = self._ledger.transactions()
        found = []
        for name, transaction in known.items():
            if transaction.state != "Ongoing":
                continue
            handle = transaction.handle
            begun = transactions.begun.get((handle.producer_id, handle.producer_epoch))
            if begun is None and ids[name] == up_to_generation and _is_young(transaction):
                continue
            epoch = begun.epoch if begun is not None else 0
            found.append(Committable(self._settings.name, SinkKind.TWO_PHASE, str(handle), ids[name], epoch, 0))
        return found

    def ledger(self) -> LedgerEntry | None:
        transactions = self._ledger.transactions_once_marked()
        members = self._members(transactions)
        if transactions.entry is not None:
            return replace(transactions.entry, members=members)
        return LedgerEntry(0, 0, 0, Positions(), "", members) if members else None

    def bind(self, binding: Binding) -> None:
        self._ledger.bind(binding)

    def write_ledger(self, entry: LedgerEntry) -> None:
        self._ledger.write_ledger(replace(entry, members=()))

    def close(self) -> None:
        self._ledger.close()

    def _members(self, transactions: TransactionLog) -> tuple[CommittedPart, ...]:
        """What was committed after the ledger row, by the producers that Kafka knows as those of their ids. A commit
        of an id that Kafka has forgotten counts as well: to run such an epoch again could double it."""
        beyond = transactions.beyond()
        known = txn_admin.describe(self._kafka, {handle.transactional_id for handle in beyond}) if beyond else {}
        holders = {name: transaction.handle.producer_id for name, transaction in known.items()}
        ours = {h: m for h, m in beyond.items() if holders.get(h.transactional_id, h.producer_id) == h.producer_id}
        if others := beyond.keys() - ours.keys():
            log.warning(
                "%s: the topic %r says that %s was committed, by a producer that is another's: %d such records are"
                " passed over. Let nobody but the pipeline write to that topic (docs/security.md)",
                self._where(),
                self._settings.ledger_topic(self._pipeline),
                min(map(str, others)),
                len(others),
            )
        return tuple(sorted(set(ours.values()), key=lambda member: (member.epoch, member.generation)))

    def _abort_unnamed(self, record: EpochRecord) -> None:
        """Abort transactions of this and earlier epochs that the manifest does not name: an open one holds back readers
        of all that is committed behind it, until the next sweep."""
        named = {committable.handle for committable in record.manifest}
        with suppress(Retriable, InDoubt):  # the commit itself is done, and the sweep insists
            found = self.leftovers(record.generation)
            self.abort([c for c in found if c.epoch <= record.epoch and c.handle not in named])

    def _end(self, handles: Sequence[Handle], commit: bool) -> list[Handle]:
        """End each, markers and all; returns those that the coordinator refuses to end this way. Once all the others
        are ended, raises InDoubt where one is not answered, ConfigError where we may not end it."""
        ended: list[Handle] = []
        refused: list[Handle] = []
        unanswered: list[str] = []
        denied: dict[Handle, int] = {}
        waiting = list(handles)
        wait = Wait(_ENDING_S, pause_s=0.005, pause_max_s=0.02)
        while waiting:
            said = txn_admin.end(self._kafka, waiting, commit)
            failpoint("kafka:ended")
            ended += [handle for handle, answer in said.items() if answer == txn_admin.OK]
            refused += [handle for handle, answer in said.items() if answer in txn_admin.REFUSED]
            waiting = [handle for handle, answer in said.items() if answer == txn_admin.BUSY]
            denied |= {
                handle: answer for handle, answer in said.items() if isinstance(answer, int) and answer in DENIED
            }
            known = {txn_admin.OK, txn_admin.BUSY, *txn_admin.REFUSED, *DENIED}
            unanswered += [f"{handle}: {answer}" for handle, answer in said.items() if answer not in known]
            if waiting and not wait.again():
                unanswered += [f"{handle}: its markers are still being written" for handle in waiting]
                break
        if not self._are_marked(ended, wait):
            unanswered.append("the markers are still being written")
        if unanswered:
            verb = "committing" if commit else "aborting"
            more = f", and {len(unanswered) - 1} more" if len(unanswered) > 1 else ""
            raise InDoubt(
                "transaction-end-unanswered",
                f"{self._where()}, {verb} transaction {unanswered[0]}{more} (Kafka's error, or why none came)",
            )
        for handle, code in denied.items():
            self._kafka.check(code, f"transaction {handle}")
        return refused

    def _are_marked(self, ended: Sequence[Handle], wait: Wait) -> bool:
        """Wait until the end of each shows in every partition that it wrote to."""
        ids = [handle.transactional_id for handle in ended]
        while ids:
            known = txn_admin.describe(self._kafka, ids)
            ids = [name for name, found in known.items() if found.state in _ENDING]
            if ids and not wait.again():
                return False
        return True

    def _evidence(
        self,
        decided: Decided,
        committables: Sequence[Committable],
        gone: Sequence[Committable],
        transactions: TransactionLog,
    ) -> str:
        rows = sum(c.rows for c in committables if c not in gone)
        named = "; ".join(f"{c.handle} ({c.rows} rows, {self._how(c, transactions)})" for c in gone)
        return (
            f"{self._where()}: epoch {decided.record.epoch} was decided, and {len(gone)} of its {len(committables)} "
            f"transactions can no longer be committed: {named}. The other {len(committables) - len(gone)} are in the "
            f"topic, with {rows} rows, as their records in the topic "
            f"{self._settings.ledger_topic(self._pipeline)!r} show. A transaction lives for "
            f"{self._settings.transaction_timeout_s:g} s; the outage was longer, or somebody "
            "aborted it. Write the missing rows by hand, from the epoch's source range"
        )

    @staticmethod
    def _how(committable: Committable, transactions: TransactionLog) -> str:
        is_aborted = transactions.is_aborted(Handle.parse(committable.handle))
        return "aborted, the log says" if is_aborted else "of which the log says nothing"

    def _where(self) -> str:
        return self._settings.where(self._pipeline)


def _state(found: TopicTransaction | None) -> str:
    return f"it is {found.state} as {found.handle}" if found is not None else "Kafka doesn't know it"


def _is_young(transaction: TopicTransaction) -> bool:
    return time.time() - transaction.started_ms / 1000 < _JUST_BEGUN_S
