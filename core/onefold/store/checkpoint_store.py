"""The checkpoint store: generations, epochs and frozen positions in a SQL database.

Every change is one short transaction that locks the pipeline's row first, so that a compare-and-set on the generation
is simply: read, compare, write. On Postgres it runs READ COMMITTED with `synchronous_commit=on` and a lock timeout; on
MariaDB READ COMMITTED in InnoDB with a lock timeout; on SQLite with WAL, `synchronous=EXTRA` and `BEGIN IMMEDIATE`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from onefold.clients.sql.database import OWN_FOLDER, Database, Transaction
from onefold.clients.sql.database_backend import Answer, Statement
from onefold.clients.sql.url import DatabaseUrl
from onefold.core.checks import require
from onefold.core.contract import MOVED, Committable, Decided, EpochRecord, EpochState, Generation, Joined, LedgerEntry
from onefold.core.errors import CheckpointMismatch, ConfigError, Fenced, InDoubt, OnefoldError, Retriable
from onefold.core.findings import Checks, Finding, Level, passed, tried
from onefold.core.invariants import ADOPTED
from onefold.core.positions import Positions, Range, Relation
from onefold.core.protocol.binding import not_mine, went_back
from onefold.core.protocol.coordinator import JoinedMerge, Merge
from onefold.core.protocol.effects import EpochRequest, StoreFacts
from onefold.core.protocol.recovery import PAST_COMMIT_POINT, begins_at
from onefold.core.protocol.runs import DecidedRun
from onefold.store import store_rows as rows
from onefold.store.store_tables import TABLES, existing_store, making_store, prepared_store

log = logging.getLogger("onefold")

KEEP_EPOCHS = 1000
PRUNE_EVERY = 100  # epochs: so many more than KEEP_EPOCHS may be there
_OF_EPOCHS = ("onefold_epochs", "onefold_runs", "onefold_pins", "onefold_journals")  # tables of all but the generation


def default_store(pipeline: str, directory: Path) -> str:
    """URL of the store of a pipeline that names none, and whose sinks have none: SQLite, in a folder of onefold's own
    that its first use makes."""
    file = directory.absolute() / OWN_FOLDER / f"{pipeline}.db"
    return str(DatabaseUrl("sqlite", database=str(file)))


class CheckpointStore:
    """One store, many pipelines. Raises `Retriable` where nothing took effect, `InDoubt` where a commit is unknown.

    With `reads_only` no call changes anything or holds a driver up, and no statement takes over `lock_timeout_s`.
    `pipeline` is whose driver uses it: the store's sessions are then those of that pipeline's sinks in its database."""

    def __init__(
        self, url: str, *, lock_timeout_s: float = 30.0, reads_only: bool = False, pipeline: str = "store"
    ) -> None:
        self.database = Database(url, lock_timeout_s, application=f"onefold {pipeline}", reads_only=reads_only)
        self._id: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can use the store."""
        return self.database.is_local

    def close(self) -> None:
        self.database.close()

    def id(self) -> str:
        """The store's own id, which every sink's ledger remembers. Makes the tables that are missing."""
        if self._id is None:
            store_id = passed(self.checks())
            if store_id is None:
                with self.database.creating() as transaction:
                    store_id = prepared_store(transaction)
            self._id = store_id  # only now: a transaction that failed has left no such store
        return self._id

    def checks(self) -> Checks[str | None]:
        """What a start checks before it makes the store. The value is the id of a store that is there, else None."""
        where = f"the checkpoint store at {self.database}"
        if not self.database.is_there():
            yield from tried(self.database.check_new)
            makes = making_store(self.database.backend, set())
            yield self.database.making_new(f"{where} is made by the first start", makes)
            return None
        with self.database.transaction() as transaction:
            backend, connection = self.database.backend, transaction.connection
            self._id = existing_store(transaction)
            if self._id is None:
                backend.check_may_create(connection)
                makes = [*backend.making(connection), *making_store(backend, backend.tables(connection))]
            else:
                backend.check_may_work(connection, TABLES.items())
        if self._id is None:
            yield Finding.making(f"{where} is made by the first start", str(self.database), makes)
            if not backend.tells_rights:
                says = f"whether the user may make the tables of {where} is tried at the start"
                yield Finding(Level.UNCHECKED, says)
        return self._id

    def look(self) -> str | None:
        """The id of a store that is there already, None if there is none. Unlike `id`, makes nothing."""
        if self._id is None and self.database.is_there():
            with self.database.transaction() as transaction:
                self._id = existing_store(transaction, to_look=True)
        return self._id

    def acquire(self, pipeline: str, above: int, last: Generation | None = None) -> Generation:
        """A new generation of the pipeline. From here on no older one decides, completes or gives up anything.

        Raises Fenced where another process took over since this one acquired `last`. If the answer to that call is
        lost, the same call again answers with what the first one wrote: its token follows from that of `last`.
        """
        self.id()
        token = uuid.uuid4().hex if last is None else uuid.uuid5(uuid.NAMESPACE_OID, last.token).hex
        with self.database.transaction((rows.LOCKED_ROW, {"pipeline": pipeline})) as transaction:
            row = next(iter(transaction.found[0].rows), None)
            if row is not None and last is not None and row.generation >= last.number and row.token != last.token:
                if row.token != token:
                    raise not_mine(last, row.generation)
                if row.generation > above:
                    return Generation(pipeline, row.generation, token)
            number = max(above, row.generation if row else 0) + 1
            if row is None:
                first = {"pipeline": pipeline, "generation": number, "token": token}
                try:
                    transaction.run(rows.adding("onefold_pipelines", first))
                except self.database.backend.integrity_error as error:  # there was no row yet to lock
                    raise Retriable(
                        "first-start-raced", f"pipeline {pipeline!r} was started for the first time by another process"
                    ) from error
            else:
                transaction.end(_of_pipeline(pipeline, generation=number, token=token))
        return Generation(pipeline, number, token)

    def facts(self, pipeline: str) -> StoreFacts:
        store_id = self.id()
        found, epochs = self.database.ask(*((asked, {"pipeline": pipeline}) for asked in rows.ROW_AND_LAST))
        row = next(iter(found.rows), None)
        unfinished, last, complete = rows.unfinished_and_last(epochs.rows)
        return StoreFacts(
            store_id=store_id,
            generation=row.generation if row else 0,
            last=last,
            complete=complete,
            unfinished=unfinished,
            frozen=Positions.from_json(row.frozen) if row and row.frozen else None,
            origin=Positions.from_json(row.origin) if row and row.origin else None,
            moved=row.moved if row else 0,
        )

    def freeze(self, generation: Generation, initial: Positions) -> Positions:
        """The initial positions on record; the first stay for good, since a replay must start where they say."""
        with self._mine(generation) as (transaction, row, _):
            if row.frozen:
                return Positions.from_json(row.frozen)
            transaction.run(_of_pipeline(generation.pipeline, frozen=initial.to_json()))
            return initial

    def find(self, pipeline: str, request: EpochRequest) -> EpochRecord | None:
        """The decided or complete epoch of exactly this range and input.

        An empty range says nothing by itself (a stateful query runs batches without new records): there the query
        and batch id must be the same too.
        """
        with self.database.transaction() as transaction:
            return _found(transaction, pipeline, request)

    def open_epoch(
        self,
        generation: Generation,
        request: EpochRequest,
        after: int,
        now_ms: int,
        completes: Decided | None = None,
    ) -> EpochRecord:
        """Open the next epoch `after` the last one, over a range that continues the chain, or answer with it if it
        is open already; one of an older generation is taken over, with its number and its T. In the same transaction
        the last epoch becomes complete, if it is given as `completes`.
        """
        pipeline = generation.pipeline
        completing_it = [] if completes is None else [rows.completing(completes.record, now_ms)]
        chain_of_it = rows.UNFINISHED_AND_LAST, {"pipeline": pipeline}
        with self._mine(generation, *completing_it, chain_of_it) as (transaction, row, found):
            if completes is not None:
                _check_completed(transaction, completes.record, found[0])
            chain = rows.chain_of(transaction, generation, found[-1].rows)
            for record in chain.unfinished:
                if record.state is EpochState.OPEN and request.is_again(record):
                    mine = replace(record, generation=generation.number)
                    if mine != record:
                        transaction.run(rows.this_epoch(record, generation=mine.generation))
                    return mine
                raise CheckpointMismatch(
                    "epoch-in-progress",
                    f"epoch {record.epoch} of pipeline {pipeline!r} is still {record.state.value}: start the query"
                    " anew, so that recovery finishes it first",
                )
            last = chain.last
            base = _base(last, row)
            if not begins_at(request, base) or (last.epoch if last else 0) != after:
                raise CheckpointMismatch(
                    "epoch-not-next",
                    f"a new epoch must start at the end of the last one, epoch {after}"
                    f" ({request.range.start.differences(base or Positions())}): another process has gone on meanwhile",
                )
            # Positions that only grow do not come again; others may be a batch's that was decided before.
            if request.query_id != MOVED and request.range.end.relation_to(request.range.start) is not Relation.AHEAD:
                decided = _found(transaction, pipeline, request)
                if decided is not None and decided.epoch > row.moved:
                    raise CheckpointMismatch(
                        "epoch-not-next",
                        f"batch {request.batch_id} of query {request.query_id} was decided before, as epoch"
                        f" {decided.epoch}: start the query anew",
                    )
            opened = request.opened(generation, chain.number + 1, max(chain.newest_ms + 1, now_ms))
            transaction.end(rows.opening(opened, now_ms))
            return opened

    def decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        merge: Merge | None = None,
        completes: Decided | None = None,
    ) -> Decided:
        """The commit point. `merge` is a last-resource sink's part of the same transaction, in which the last epoch
        becomes complete, if it is given as `completes`. The store need not have the epoch as open."""
        loading: Sequence[Any] = ()
        if isinstance(merge, JoinedMerge) and self.database.backend.joins:
            loading = merge.loading
            try:
                if merge.joined is not None:
                    return self._decide(generation, record, manifest, now_ms, completes, joined=merge.joined)
            except (Fenced, InDoubt):
                raise
            except OnefoldError as error:  # nothing was written: the merge gets past it, or says what it is
                log.debug("epoch %d is decided step by step: %s", record.epoch, error)
        return self._decide(generation, record, manifest, now_ms, completes, merge=merge, loading=loading)

    def _decide(
        self,
        generation: Generation,
        record: EpochRecord,
        manifest: Sequence[Committable],
        now_ms: int,
        completes: Decided | None,
        *,
        merge: Merge | None = None,
        joined: Joined | None = None,
        loading: Sequence[Any] = (),
    ) -> Decided:
        first = joined or (Joined(loading, (), lambda *_: None) if loading else None)
        completing_it = [] if completes is None else [rows.completing(completes.record, now_ms)]
        asking = rows.STORED_AND_LAST, rows.key_of(record)
        with self._mine(generation, *completing_it, asking, joined=first) as (transaction, row, found):
            if completes is not None:
                _check_completed(transaction, completes.record, found[0])
            stored, last = rows.stored_and_last(found[-1].rows, record)
            if stored is not None and stored.state in (EpochState.DECIDED, EpochState.COMPLETE):
                if stored.manifest == tuple(manifest):
                    require(joined is None, "the ledger's row keeps rows out of an epoch that is decided")
                    return Decided(stored)
                raise CheckpointMismatch(
                    "other-manifest", f"epoch {record.epoch} was decided with another manifest: start the query anew"
                )
            follows = begins_at(record, _base(last, row))
            is_next = (last.epoch if last else 0) == record.epoch - 1 and record.generation == generation.number
            is_resolved = last is None or last.state is EpochState.COMPLETE
            is_as_opened = stored in (None, record)
            if not (follows and is_next and is_resolved and is_as_opened):
                raise CheckpointMismatch(
                    "epoch-not-decidable",
                    f"epoch {record.epoch} of pipeline {record.pipeline!r} can't be decided: the store stands at"
                    f" {f'epoch {last.epoch}, {last.state.value}' if last else 'no epoch'}, so it is not as this"
                    " process left it. Start the pipeline again: it compares what is there, and says what can be done",
                )
            decided = replace(record, state=EpochState.DECIDED, manifest=tuple(manifest))
            rows.claim_name(transaction, decided, now_ms)
            if joined is not None:
                joined.check(transaction.connection, transaction.of_joined)
            elif merge is not None:
                merge(transaction.connection)
            if decided.is_move and not decided.range.is_empty:
                _moved_to(transaction, decided.pipeline, decided.range.end, decided.epoch)
            transaction.end(rows.deciding(decided, now_ms) if stored else rows.decided_at_once(decided, now_ms))
            return Decided(decided)

    def complete(self, generation: Generation, decided: Decided, now_ms: int) -> None:
        record = decided.record
        with self._mine(generation, rows.completing(record, now_ms)) as (transaction, _, (completed,)):
            _check_completed(transaction, record, completed)

    def damage(self, generation: Generation, decided: Decided, evidence: str) -> None:
        with self._mine(generation) as (transaction, _, _):
            _stored_as(transaction, decided.record, *PAST_COMMIT_POINT)
            transaction.run(rows.this_epoch(decided.record, state=EpochState.DAMAGED.value, error=evidence))

    def accept_damage(self, generation: Generation, record: EpochRecord) -> Decided:
        """Set a damaged epoch to decided again, on the user's word that its missing rows were written by hand."""
        with self._mine(generation) as (transaction, _, _):
            stored = _stored_as(transaction, record, EpochState.DAMAGED, EpochState.DECIDED)
            accepted = replace(stored, state=EpochState.DECIDED)
            transaction.run(rows.this_epoch(record, state=accepted.state.value))
            return Decided(accepted)

    def adopt(self, generation: Generation, entry: LedgerEntry, sinks: tuple[str, ...], now_ms: int) -> None:
        """Take over, on the user's word, that the destinations completed everything up to `entry`."""
        pipeline = generation.pipeline
        with self._mine(generation) as (transaction, _, _):
            values = {"pipeline": pipeline, "epoch": entry.epoch}
            of_states = "UPDATE onefold_epochs SET state = '{}' WHERE pipeline = %(pipeline)s AND state IN ({})"
            transaction.run(
                (of_states.format("given_up", "'open'"), values),
                ("DELETE FROM onefold_epochs WHERE pipeline = %(pipeline)s AND epoch >= %(epoch)s", values),
                (of_states.format("complete", "'decided', 'damaged'"), values),
            )
            adopted = EpochRecord(
                pipeline=pipeline,
                epoch=entry.epoch,
                generation=generation.number,
                state=EpochState.COMPLETE,
                range=Range(entry.positions, entry.positions),
                timestamp_ms=entry.timestamp_ms,
                query_id=ADOPTED,
                batch_id=-1,
                fingerprint="",
                sinks=sinks,
            )
            times = {"opened_at_ms": now_ms, "completed_at_ms": now_ms}
            transaction.run(rows.adding("onefold_epochs", rows.values_of(adopted) | times))
            rows.adopt_name(transaction, adopted, now_ms)
            left = [record for record in rows.decided_moves(transaction, pipeline) if not record.range.is_empty]
            _moved_to(transaction, pipeline, left[-1].range.end if left else None, left[-1].epoch if left else 0)

    def moves(self, pipeline: str) -> list[EpochRecord]:
        """Every decided epoch that moved the positions, the oldest first: they are never pruned."""
        self.id()
        with self.database.transaction() as transaction:
            return rows.decided_moves(transaction, pipeline)

    def anchor(self, generation: Generation, origin: Positions) -> None:
        """From now on a new checkpoint's first batch begins at `origin`, where the last decided epoch ends."""
        with self._mine(generation) as (transaction, row, _):
            _moved_to(transaction, generation.pipeline, origin, row.moved)

    def note(self, generation: Generation, name: str, value: str) -> None:
        """Pin the value under that name, also in the place of another."""
        here = {"pipeline": generation.pipeline, "name": name}
        with self._mine(generation) as (transaction, _, _):
            transaction.end(rows.removing("onefold_pins", **here), rows.adding("onefold_pins", here | {"value": value}))

    def tell(self, pipeline: str, name: str, value: str) -> None:
        """The same beside whoever runs the pipeline, of what is for people alone."""
        here = {"pipeline": pipeline, "name": name}
        with self.database.transaction((rows.LOCKED_ROW, {"pipeline": pipeline})) as transaction:
            transaction.end(rows.removing("onefold_pins", **here), rows.adding("onefold_pins", here | {"value": value}))

    def decided_run(self, pipeline: str, run: str) -> DecidedRun | None:
        """The batch run of that name, if it was ever decided: names are kept for good, also of pruned epochs."""
        self.id()
        with self.database.transaction() as transaction:
            return rows.decided_run(transaction, pipeline, run)

    def forget(self, pipeline: str) -> None:
        """Remove all rows of a retired pipeline, on the user's word. Fences a driver that still runs it.

        Raises ConfigError while an epoch of it is unfinished.
        """
        self.id()
        with self.database.transaction() as transaction:
            rows.pipeline_row(transaction, pipeline, is_locked=True)
            unfinished = rows.unfinished_epochs(transaction, pipeline)
            if unfinished:
                raise ConfigError(
                    "epoch-unfinished",
                    f"epoch {unfinished[0].epoch} of pipeline {pipeline!r} is {unfinished[0].state.value}: start the"
                    " pipeline once more, or `onefold txn resolve --take-over` it, before it is forgotten",
                )
            transaction.run(*(rows.removing(table, pipeline=pipeline) for table in (*_OF_EPOCHS, "onefold_pipelines")))

    def begin_anew(self, generation: Generation) -> None:
        """Remove all rows of a pipeline but its generation, on the user's word: every older driver stays fenced."""
        with self._mine(generation) as (transaction, _, _):
            pipeline = generation.pipeline
            transaction.run(
                *(rows.removing(table, pipeline=pipeline) for table in _OF_EPOCHS),
                _of_pipeline(pipeline, frozen=None, origin=None, moved=0),
            )

    def history(self, pipeline: str, limit: int = KEEP_EPOCHS) -> list[EpochRecord]:
        """The newest epochs, oldest first, given-up ones included; of moves, too, only those that others of their age
        would be kept of."""
        self.id()
        with self.database.transaction() as transaction:
            newest = rows.epochs_where(transaction, pipeline, "epoch >= 0 ORDER BY epoch DESC LIMIT %(n)s", n=limit)
        found = newest[::-1]
        oldest = found[-1].epoch - KEEP_EPOCHS if found else 0
        return [record for record in found if not record.is_move or record.epoch >= oldest]

    @contextmanager
    def _mine(
        self, generation: Generation, *then: Statement, joined: Joined | None = None
    ) -> Iterator[tuple[Transaction, Any, list[Answer]]]:
        """A transaction that locks the pipeline's row, and what the statements after that answer. Raises Fenced, and
        what they did is undone, unless the generation is still this one."""
        first = rows.LOCKED_ROW, {"pipeline": generation.pipeline}
        with self.database.transaction(first, *then, joined=joined) as transaction:
            locked, *found = transaction.found
            row = next(iter(locked.rows), None)
            if row is None or (row.generation, row.token) != (generation.number, generation.token):
                raise not_mine(generation, row.generation if row else None)
            yield transaction, row, found


def _found(transaction: Transaction, pipeline: str, request: EpochRequest) -> EpochRecord | None:
    batch = (request.query_id, request.batch_id)
    for record in rows.found_epochs(transaction, pipeline, request.range):
        is_batch = not request.range.is_empty or (record.query_id, record.batch_id) == batch
        if is_batch and request.range.is_again(record.range) and request.has_input_of(record):
            return record
    return None


def _check_completed(transaction: Transaction, record: EpochRecord, completed: Answer) -> None:
    """After `completing`, which once more changes nothing: another epoch may be past it by then."""
    if completed.rowcount != 1:
        _stored_as(transaction, record, EpochState.COMPLETE)
    elif record.epoch % PRUNE_EVERY == 0:
        transaction.run(rows.pruning(record, KEEP_EPOCHS, EpochState.COMPLETE, EpochState.GIVEN_UP))


def _stored_as(transaction: Transaction, record: EpochRecord, *states: EpochState) -> EpochRecord:
    """The epoch as the store has it. Raises CheckpointMismatch where it is in none of these states, since only a newer
    generation could have changed it."""
    stored = rows.stored_epoch(transaction, record)
    if stored is None or stored.state not in states:
        raise went_back(record, stored)
    return stored


def _base(last: EpochRecord | None, row: Any) -> Positions | None:
    """Where the next epoch begins; None where the first one may begin anywhere."""
    return last.range.end if last else Positions.from_json(row.frozen) if row.frozen else None


def _moved_to(transaction: Transaction, pipeline: str, origin: Positions | None, moved: int) -> None:
    """Note where a new checkpoint begins, and which epoch moved the positions last."""
    text = None if origin is None else origin.to_json()
    transaction.run(_of_pipeline(pipeline, origin=text, moved=moved))


def _of_pipeline(pipeline: str, **values: Any) -> Statement:
    """Changes the pipeline's row."""
    return rows.setting("onefold_pipelines", {"pipeline": pipeline}, **values)
