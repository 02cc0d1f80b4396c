"""The driver's hand in Postgres. It finishes and undoes work of both deliveries, whatever today's settings are."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from onefold.clients.postgres import connection as pool
from onefold.clients.postgres import errors
from onefold.core.contract import Binding, Committable, Decided, EpochRecord, LedgerEntry, SinkKind
from onefold.core.errors import ConfigError, Damaged, DataLoss, InDoubt, OnefoldError, Retriable, WorkLost
from onefold.core.failpoints import failpoint
from onefold.core.positions import Positions
from onefold.core.sql import postgres_trust
from onefold.core.topic_identity import counts_offsets
from onefold.sinks.postgres.commit import prepared
from onefold.sinks.postgres.commit.prepared import NotOurs
from onefold.sinks.postgres.commit.server_identity import ServerIdentity
from onefold.sinks.postgres.merge import staging, tombstones
from onefold.sinks.postgres.naming import Gid, gid_prefix
from onefold.sinks.postgres.plan import Delivery, Plan, Settings
from onefold.sinks.postgres.rejects.dead_letters import Origin
from onefold.sinks.staged.older_copy import LedgerMemory

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["PostgresCommitter"]

log = logging.getLogger("onefold")


class PostgresCommitter:
    """Idempotent, from any process. `plan` is None before `open`: recovery touches no target, and merges nothing."""

    def __init__(self, settings: Settings, pipeline: str, plan: Plan | None) -> None:
        self._settings, self._pipeline, self._plan = settings, pipeline, plan
        self._conninfo = settings.conninfo(pipeline)
        self._books = settings.bookkeeping(pipeline)
        self._prefix = gid_prefix(pipeline, settings.name, settings.ledger)
        self._may_be_outgrown = plan is not None and plan.stage_table is not None  # other stages, by this plan's
        self._memory = LedgerMemory()
        self._incarnation: ServerIdentity | None = None  # None before the ledger was read
        self._reported: set[prepared.Other] = set()

    def verify(self, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        with self._borrow("checking prepared work") as connection:
            if gids:
                there, others = prepared.named(connection, self._prefix)
                missing = [c for c in gids if c.handle not in there]
                theirs = next((other for other in others if other.gid in {c.handle for c in missing}), None)
                if theirs is not None:
                    raise ConfigError(
                        f"{self._where()}, epoch {missing[0].epoch}: prepared transaction {theirs.gid!r} belongs to"
                        f" role {theirs.owner!r}, of which this session's is no member, so that it could not commit it."
                        " Nothing was decided: GRANT that role to this one, or give tasks and driver one role=..."
                    )
                if missing:
                    raise WorkLost(
                        f"{self._where()}, epoch {missing[0].epoch}: {len(missing)} of {len(gids)} prepared "
                        f"transactions are gone before the decision, the first is {missing[0].handle!r}. "
                        "Somebody rolled them back; the epoch's writers must run again"
                    )
            staging.verify(connection, self._books, staged)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        if gids:
            with self._borrow(f"committing epoch {decided.record.epoch}", InDoubt) as connection:
                refused: dict[str, NotOurs] = {}
                for committable in gids:
                    try:
                        prepared.end(connection, "COMMIT", committable, self._where(), InDoubt)
                    except NotOurs as error:  # somebody's who took the name once ours was committed; or ours after all
                        refused[committable.handle] = error
                    failpoint("postgres.commit_prepared")
                committed = self._books.committed(connection, [c.handle for c in gids], decided.record.epoch)
                gone = [c for c in gids if c.handle not in committed]
                for committable in gone:
                    if committable.handle in refused:
                        raise refused[committable.handle]
                    self._refuse_other_books(committable)
                if gone:
                    raise self._of_gone(connection, gone, len(gids))
        if staged or (self._plan is not None and self._plan.delivery is Delivery.STAGED):
            self._memory.wrote(decided.record.epoch)  # the decision wrote the ledger
        if staged:
            # The decision moved the rows already: what is left to do is to throw the stage's copies away.
            with self._borrow(f"clearing the stage of epoch {decided.record.epoch}") as connection:
                staging.clear(connection, self._books, staged, self._settings.lock_timeout_s)
        if self._plan is not None and self._may_be_outgrown:
            with self._borrow("dropping outgrown stages") as connection:
                generation = decided.record.generation
                self._may_be_outgrown = not staging.drop_outgrown(connection, self._books, self._plan.stage, generation)
        if self._plan is not None and self._plan.changes is not None:
            self._tidy(self._plan, decided.record.timestamp_ms)

    def _tidy(self, plan: Plan, timestamp_ms: int) -> None:
        """After an epoch of upserts."""
        with self._borrow("tidying up after upserts") as connection:
            if plan.tombstones is not None:
                with connection.transaction():
                    connection.execute(pool.transaction_settings(self._settings.lock_timeout_s))
                    tombstones.prune(connection, plan.tombstones, timestamp_ms)
            if plan.delivery is Delivery.TWO_PHASE:
                assert plan.stage_table is not None
                staging.empty(connection, plan.stage_table, self._settings.lock_timeout_s)

    def abort(self, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        with self._borrow("aborting prepared work") as connection:
            for committable in gids:
                try:
                    prepared.end(connection, "ROLLBACK", committable, self._where(), Retriable)
                except NotOurs as error:
                    log.warning("%s. It is left alone", error)
            staging.discard(connection, self._books, staged, self._settings.lock_timeout_s)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        name = self._settings.name
        with self._borrow("looking for leftovers") as connection:
            there, others = prepared.named(connection, self._prefix)
            staged = staging.leftovers(connection, self._books, up_to_generation)
        self._report(others)
        gids = [Gid.parse(self._prefix, text) for text in sorted(there)]
        left = [
            Committable(name, SinkKind.TWO_PHASE, str(gid), gid.generation, gid.epoch, 0)
            for gid in gids
            if gid is not None and gid.generation <= up_to_generation
        ]
        return [*left, *staged]

    def _report(self, others: Sequence[prepared.Other]) -> None:
        """Once each: what a manifest names is not among them, so nothing is lost with them."""
        for other in others:
            if other not in self._reported:
                self._reported.add(other)
                log.warning(
                    "%s: prepared transaction %r has a name of this sink's and was prepared by role %r, of which this"
                    " session's is no member: it is left alone, and `onefold txn list` shows it",
                    self._where(),
                    other.gid,
                    other.owner,
                )

    def ledger(self) -> LedgerEntry | None:
        with self._borrow("reading the ledger") as connection:
            self._incarnation = ServerIdentity.of(connection)
            found = self._books.ledger(connection)
        self._memory.read(found.epoch if found is not None else 0)
        return found

    def counted(self) -> Mapping[str, Collection[Positions]]:
        changes = self._settings.changes
        if changes is None or not counts_offsets(changes.order):
            return {}
        with self._borrow("reading other pipelines' ledgers") as connection:
            return self._books.others(connection)

    def bind(self, binding: Binding) -> None:
        with self._borrow(f"binding the ledger to generation {binding.generation}", InDoubt) as connection:
            self._begin(connection)
            self._books.bind(connection, binding)
            connection.execute("COMMIT")

    def write_ledger(self, entry: LedgerEntry) -> None:
        with self._borrow(f"writing the ledger row of epoch {entry.epoch}", InDoubt) as connection:
            self._begin(connection)
            self._check_ledger_is_not_older(connection)
            self._books.write_ledger(connection, entry)
            connection.execute("COMMIT")
        self._memory.wrote(entry.epoch)

    def shares_store(self, store_id: str) -> bool:
        with self._borrow("looking for the checkpoint store") as connection:
            return postgres_trust.has_store(pool.ask(connection), store_id)

    def merge(
        self, connection: sa.Connection, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry
    ) -> None:
        """Inside the store's transaction, on the store's connection to this same database."""
        assert self._plan is not None, "merge needs a committer from open(): recovery never decides"
        assert entry.epoch == record.epoch, (entry.epoch, record.epoch)
        raw = connection.connection.driver_connection
        if not isinstance(raw, psycopg.Connection):
            raise ConfigError(
                f"{self._where()}: staged delivery decides inside the sink's own database, and the checkpoint store is "
                "elsewhere: leave the store to its default, or use the sink's store_url()"
            )
        assert not raw.autocommit, "the merge and the decision must be one transaction"
        try:
            raw.execute(pool.transaction_settings(self._settings.lock_timeout_s))
            self._check_ledger_is_not_older(raw)
            name = self._settings.name
            origin = Origin(record.pipeline, name, record.epoch, entry.generation, record.timestamp_ms)
            mine = [c for c in manifest if c.sink == name]
            staging.merge(raw, self._books, self._plan, mine, origin, self._settings.rejects_max)
            failpoint("staged.merge")
            self._books.write_ledger(raw, entry)
        except psycopg.Error as error:
            # Before the store commits, nothing has taken effect: a broken connection rolls back too.
            raise errors.translate(error, f"{self._where()}, merging epoch {record.epoch}", raw) from error

    def close(self) -> None:
        pool.close_idle(self._conninfo)

    def _split(self, committables: Sequence[Committable]) -> tuple[list[Committable], list[Committable]]:
        gids, staged = [], []
        for committable in committables:
            assert committable.sink == self._settings.name, committable
            if committable.kind is SinkKind.LAST_RESOURCE:
                staged.append(committable)
            else:
                gids.append(committable)
        return gids, staged

    def _refuse_other_books(self, committable: Committable) -> None:
        """That it was committed is noted in the schema that it was prepared with."""
        if not committable.handle.startswith(self._prefix):
            raise ConfigError(
                f"{self._where()}: epoch {committable.epoch} was prepared with another ledger than"
                f" {self._books.schema!r}, and is not finished. Set that back, and start again"
            )

    def _begin(self, connection: pool.Session) -> None:
        """A driver that was frozen or cut off in mid-transaction must not keep the ledger's row locked."""
        connection.begin(self._settings.lock_timeout_s, idle_s_max=self._settings.lock_timeout_s / 2)

    def _check_ledger_is_not_older(self, connection: pool.Connection) -> None:
        there = self._books.epoch(connection)
        if self._memory.is_older(there):
            self._memory.check(self._where(), there, self._became(ServerIdentity.of(connection)))

    def _became(self, now: ServerIdentity) -> str | None:
        return self._incarnation.became(now) if self._incarnation is not None else None

    def _of_gone(self, connection: pool.Connection, gone: Sequence[Committable], of: int) -> OnefoldError:
        became = self._became(ServerIdentity.of(connection))
        if became is None:
            return Damaged(self._evidence(gone, of))
        return DataLoss(
            f"{self._where()}: epoch {gone[0].epoch} was decided, and {len(gone)} of its {of} prepared transactions "
            f"are gone, the first is {gone[0].handle!r}; {became}, and it had not caught up. Bring back the server "
            "that has the rest; or start the pipeline again: it compares the store, the ledger and Spark's checkpoint, "
            "and says how to go on"
        )

    def _evidence(self, gone: Sequence[Committable], of: int) -> str:
        named = ", ".join(f"{c.handle} ({c.rows} rows)" for c in gone)
        return (
            f"{self._where()}: epoch {gone[0].epoch} was decided, and {len(gone)} of its {of} prepared transactions "
            f"are neither in pg_prepared_xacts nor committed (no row in {self._books.schema}.onefold_parts): {named}. "
            "Somebody rolled them back, or the server came back older than it was. The others are committed. "
            "Restore the server, or write these rows again from the epoch's source range"
        )

    @contextmanager
    def _borrow(self, doing: str, lost: type[OnefoldError] = Retriable) -> Iterator[pool.Session]:
        with pool.borrow(self._conninfo, f"{self._where()}, {doing}", lost) as connection:
            yield connection

    def _where(self) -> str:
        return f"sink {self._settings.name!r} of pipeline {self._pipeline!r}"
