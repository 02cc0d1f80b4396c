"""The driver's hand in Postgres. It finishes and undoes work of both deliveries, whatever today's settings are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any
from weakref import WeakSet

import psycopg

from onefold.clients.per_process import PerProcess
from onefold.clients.postgres import driver_errors, trust
from onefold.clients.postgres import sessions as pool
from onefold.clients.sql.database_backend import Answer
from onefold.core.checks import present, require
from onefold.core.contract import Committable, Decided, EpochRecord, Joined, LedgerEntry, SinkKind
from onefold.core.errors import ConfigError, Damaged, DataLoss, InDoubt, OnefoldError, Retriable, WorkLost
from onefold.core.failpoints import failpoint
from onefold.sinks.postgres import prepared
from onefold.sinks.postgres.dead_letters import LetterOrigin
from onefold.sinks.postgres.guarantee_checks import ServerIdentity
from onefold.sinks.postgres.ledger.bookkeeping import Bookkeeping
from onefold.sinks.postgres.merge import direct, staging, tombstones
from onefold.sinks.postgres.naming import Gid, gid_prefix
from onefold.sinks.postgres.sink_options import Delivery, PostgresSinkConfig
from onefold.sinks.postgres.sink_plan import PostgresPlan
from onefold.sinks.staged.attempts import leftover
from onefold.sinks.staged.ledger_committer import LedgerCommitter

log = logging.getLogger("onefold")


_open = PerProcess(WeakSet["PostgresCommitter"])


class PostgresCommitter(LedgerCommitter[pool.Connection]):
    """Idempotent, from any process. `plan` is None before `open`: recovery touches no target, and merges nothing."""

    _books: Bookkeeping

    def __init__(self, settings: PostgresSinkConfig, pipeline: str, plan: PostgresPlan | None) -> None:
        super().__init__(settings.name, settings.changes, settings.bookkeeping(pipeline))
        self._settings, self._pipeline, self._plan = settings, pipeline, plan
        self._conninfo = settings.conninfo(pipeline)
        self._prefix = gid_prefix(pipeline, settings.name, settings.ledger)
        self._may_be_outgrown = plan is not None and plan.stage_table is not None  # other stages, by this plan's
        self._server: ServerIdentity | None = None  # None before the ledger was read
        self._looked_by: pool.Connection | None = None
        self._reported: set[prepared.Other] = set()
        self._deleted_bytes = 0  # of rows in the stage
        with _open.lock:
            _open.now.add(self)

    def verify(self, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        direct.verify(committables, self._where())
        with self._borrow("checking prepared work") as connection:
            if gids:
                there, others = prepared.named(connection, self._prefix)
                missing = [c for c in gids if c.handle not in there]
                theirs = next((other for other in others if other.gid in {c.handle for c in missing}), None)
                if theirs is not None:
                    raise ConfigError(
                        "transaction-of-another-role",
                        f"{self._where()}, epoch {missing[0].epoch}: prepared transaction {theirs.gid!r} belongs to"
                        f" role {theirs.owner!r}, of which this session's is no member, so that it could not commit it."
                        " Nothing was decided: GRANT that role to this one, or give tasks and driver one role=...",
                    )
                if missing:
                    raise WorkLost(
                        "prepared-work-gone",
                        f"{self._where()}, epoch {missing[0].epoch}: {len(missing)} of {len(gids)} prepared "
                        f"transactions are gone before the decision, the first is {missing[0].handle!r}. "
                        "Somebody rolled them back; the epoch's writers must run again",
                    )
            staging.verify(connection, self._books, staged)

    def commit(self, decided: Decided, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        if gids:
            doing = f"committing epoch {decided.record.epoch}"
            with ExitStack() as borrowed:
                connection = borrowed.enter_context(self._borrow(doing, InDoubt))
                sessions = [connection]
                with suppress(OnefoldError):  # then with those that there are
                    # Behind a pooler another one would wait for a session of the server's, which this one may hold.
                    for _ in range(1, 1 if connection.is_pooled else prepared.sessions_for(len(gids))):
                        sessions.append(borrowed.enter_context(self._borrow(doing, InDoubt)))
                # Refused is somebody's who took the name once ours was committed; or ours after all.
                refused = prepared.commit_all(sessions, gids, self._where())
                committed = self._books.committed(connection, [c.handle for c in gids], decided.record.epoch)
                gone = [c for c in gids if c.handle not in committed]
                for committable in gone:
                    if committable.handle in refused:
                        raise refused[committable.handle]
                    self._refuse_other_books(committable)
                if gone:
                    raise self._of_gone(connection, gone, len(gids))
        if staged or (self._plan is not None and self._plan.delivery is not Delivery.TWO_PHASE):
            self._was_decided(decided.record.epoch)
        if staged:
            # The decision moved the rows already: what is left to do is to throw the stage's copies away.
            with self._borrow(f"clearing the stage of epoch {decided.record.epoch}") as connection:
                self._deleted_bytes = staging.clear(
                    connection, self._books, staged, self._deleted_bytes, self._settings.lock_timeout_s
                )
        if self._plan is not None and self._may_be_outgrown:
            with self._borrow("dropping outgrown stages") as connection:
                generation = decided.record.generation
                self._may_be_outgrown = not staging.drop_outgrown(connection, self._books, self._plan.stage, generation)
        if self._plan is not None and self._plan.changes is not None:
            self._tidy(self._plan, decided.record.timestamp_ms)

    def write_ledger(self, entry: LedgerEntry) -> None:
        """In one round trip where nothing is in the way."""
        if entry == self._decided:
            return
        moving = self._books.moving_on(entry, self._memory.epoch)
        with self._borrow(f"writing the ledger row of epoch {entry.epoch}", InDoubt) as connection:
            (moved,) = connection.begin(self._settings.lock_timeout_s, first=[moving], then="COMMIT")
        if moved.rowcount == 1:
            self._memory.wrote(entry.epoch)
        else:
            super().write_ledger(entry)

    def _move_on(self, connection: pool.Connection, entry: LedgerEntry) -> None:
        (moved,) = connection.together(self._books.moving_on(entry, self._memory.epoch))
        if moved.rowcount != 1:
            super()._move_on(connection, entry)  # says what is in the way

    def _tidy(self, plan: PostgresPlan, timestamp_ms: int) -> None:
        """After an epoch of upserts."""
        with self._borrow("tidying up after upserts") as connection:
            if plan.tombstones is not None:
                with connection.transaction(self._settings.lock_timeout_s):
                    tombstones.prune(connection, plan.tombstones, timestamp_ms)
            if plan.delivery is Delivery.TWO_PHASE:
                stage = present(plan.stage_table, "upserts without a stage table")
                staging.empty(connection, stage, self._settings.lock_timeout_s)

    def abort(self, committables: Sequence[Committable]) -> None:
        gids, staged = self._split(committables)
        with self._borrow("aborting prepared work") as connection:
            for committable in gids:
                try:
                    prepared.end(connection, "ROLLBACK", committable, self._where(), Retriable)
                except prepared.NotOurs as error:
                    log.warning("%s. It is left alone", error)
            staging.discard(connection, self._books, staged, self._settings.lock_timeout_s)

    def leftovers(self, up_to_generation: int) -> Sequence[Committable]:
        name = self._settings.name
        asked = prepared.asking_named(self._prefix), staging.asking_leftovers(self._books, up_to_generation)
        with self._borrow("looking for leftovers") as connection:
            named, staged = connection.together(*asked)
        there, others = prepared.told_apart(named.rows)
        self._report(others)
        gids = [Gid.parse(self._prefix, text) for text in sorted(there)]
        left = [
            Committable(name, SinkKind.TWO_PHASE, str(gid), gid.generation, gid.epoch, 0)
            for gid in gids
            if gid is not None and gid.generation <= up_to_generation
        ]
        return [*left, *(leftover(name, *row) for row in staged.rows)]

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

    def shares_store(self, store_id: str) -> bool:
        with self._borrow("looking for the checkpoint store") as connection:
            return trust.has_store(connection, store_id)

    def _merge(
        self, connection: pool.Connection, record: EpochRecord, mine: Sequence[Committable], generation: int
    ) -> None:
        plan = present(self._plan, "merge needs a committer from open(): recovery never decides")
        origin = LetterOrigin(record.pipeline, self._settings.name, record.epoch, generation, record.timestamp_ms)
        settings, carried = self._settings, [each for each in mine if direct.is_direct(each)]
        if carried:
            where = self._books.where(record.epoch)
            direct.merge(connection, plan, carried, record.timestamp_ms, settings.lock_timeout_s, where)
        _, staged = self._split(mine)
        staging.merge(connection, self._books, plan, staged, origin, settings.rejects_max, settings.lock_timeout_s)

    def joined(self, record: EpochRecord, manifest: Sequence[Committable], entry: LedgerEntry) -> Joined | None:
        """Of all but dead letters, deletions and staged upserts. Rows of the driver's go into the target before the
        pipeline is locked, and wait there for nobody: so a driver that is frozen in COPY stands in no other's way."""
        plan = self._plan
        if plan is None or plan.delivery is Delivery.TWO_PHASE or plan.rejects is not None:
            return None
        carried, (_, staged) = [each for each in manifest if direct.is_direct(each)], self._split(manifest)
        if plan.changes is not None and (staged or plan.changes.deletes):
            return None
        before = direct.joined(plan, carried) if carried else []
        after = staging.joined(plan, staged, self._settings.lock_timeout_s) if staged else []
        moving = self._books.moving_on(entry, self._memory.epoch, must=True)
        where = self._books.where(record.epoch)

        def check(connection: Any, answers: Sequence[Answer]) -> None:
            of_direct, of_stage = answers[: len(before)], answers[len(before) : -1]
            if carried:
                direct.check_joined(plan, carried, of_direct, where)
            if staged:
                staging.check_joined(connection, plan, staged, of_stage, where)
            failpoint("staged.merge")
            self._merged = entry

        return Joined(before, [*after, moving], check)

    def loading(self, manifest: Sequence[Committable]) -> Sequence[Any]:
        carried = [each for each in manifest if direct.is_direct(each)]
        return direct.loading(self._plan, carried) if carried and self._plan is not None else []

    @contextmanager
    def _deciding(self, connection: Any, doing: str) -> Iterator[pool.Connection]:
        if not isinstance(connection, pool.Connection):
            raise ConfigError(
                "store-elsewhere",
                f"{self._where()}: staged delivery decides inside the sink's own database, and the checkpoint store is "
                "elsewhere: leave the store to its default, or use the sink's store_url()",
            )
        is_open = connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        require(is_open, "the merge and the decision must be one transaction")
        try:
            yield connection
        except psycopg.Error as error:
            # Before the store commits, nothing has taken effect: a broken connection rolls back too.
            raise driver_errors.translate(error, f"{self._where()}, {doing}", connection) from error

    def _reading(self, doing: str) -> AbstractContextManager[pool.Connection]:
        return self._borrow(doing)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[pool.Connection]:
        """A driver that was frozen or cut off in mid-transaction must not keep the ledger's row locked."""
        with self._borrow(doing, InDoubt) as connection:
            connection.begin(self._settings.lock_timeout_s, idle_s_max=self._settings.lock_timeout_s / 2)
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Its sessions stay where another committer goes on with them: that of `open` does with those of `recover`."""
        with _open.lock:
            _open.now.discard(self)
            is_last = all(each._conninfo != self._conninfo for each in _open.now)
        if is_last:
            pool.close_idle(self._conninfo)

    def _split(self, committables: Sequence[Committable]) -> tuple[list[Committable], list[Committable]]:
        """What is prepared, and what is staged: of rows that come with an attempt nothing is here."""
        gids, staged = [], []
        for committable in committables:
            require(committable.sink == self._settings.name, f"work of another sink: {committable}")
            if committable.kind is not SinkKind.LAST_RESOURCE:
                gids.append(committable)
            elif not direct.is_direct(committable):
                staged.append(committable)
        return gids, staged

    def _refuse_other_books(self, committable: Committable) -> None:
        """Raises ConfigError for work prepared with another ledger schema: only that one knows if it was committed."""
        if not committable.handle.startswith(self._prefix):
            raise ConfigError(
                "ledger-changed",
                f"{self._where()}: epoch {committable.epoch} was prepared with another ledger than"
                f" {self._books.schema!r}, and is not finished. Set that back, and start again",
            )

    def _look(self, connection: pool.Connection) -> None:
        """Once by each session: without a pooler it stays on its server."""
        if connection is not self._looked_by or connection.is_pooled:
            self._server, self._looked_by = ServerIdentity.of(connection), connection

    def _became(self, connection: pool.Connection) -> str | None:
        return self._server.became(ServerIdentity.of(connection)) if self._server is not None else None

    def _of_gone(self, connection: pool.Connection, gone: Sequence[Committable], of: int) -> OnefoldError:
        became = self._became(connection)
        if became is None:
            return Damaged("decided-work-gone", self._evidence(gone, of))
        return DataLoss(
            "destination-older-copy",
            f"{self._where()}: epoch {gone[0].epoch} was decided, and {len(gone)} of its {of} prepared transactions "
            f"are gone, the first is {gone[0].handle!r}; {became}, and it had not caught up. Bring back the server "
            "that has the rest; or start the pipeline again: it compares the store, the ledger and Spark's checkpoint, "
            "and says how to go on",
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
    def _borrow(self, doing: str, lost: type[Retriable | InDoubt] = Retriable) -> Iterator[pool.Connection]:
        with pool.borrow(self._conninfo, f"{self._where()}, {doing}", lost) as connection:
            yield connection

    def _where(self) -> str:
        return self._settings.where(self._pipeline)
