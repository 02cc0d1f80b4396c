"""What the real servers say once the pipeline rests, as evidence for the named invariants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from onefold.connectors.torture.comparing import Place, Row, compare_appended, compare_newest, versions_after
from onefold.connectors.torture.settings import PIPELINE
from onefold.connectors.torture.watcher import Watcher
from onefold.connectors.workload import topic
from onefold.connectors.workload.mixed import MixedOrder
from onefold.connectors.workload.settings import PARTITIONS, TABLE, TOPIC, Job
from onefold.core import Committable, LedgerEntry, Positions, SinkKind
from onefold.core.invariants import INVARIANTS, AtomicEpoch, Comparison, Evidence, Glimpse, verdicts
from onefold.core.store import CheckpointStore

__all__ = ["Audit", "Auditor"]

_IN_DOUBT = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
_OPEN = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND application_name <> 'torture' AND xact_start < now() - interval '5 seconds'
"""
_PARTS = "SELECT epoch, generation, gid, rows FROM onefold_sinks.onefold_parts WHERE pipeline = %s AND sink = %s"
_DEAD = """
SELECT (position->>'kafka_partition')::int, (position->>'kafka_offset')::bigint, count(*)
FROM onefold_sinks.onefold_dead_letters GROUP BY 1, 2
"""
_STAGES = """
SELECT relname FROM pg_class WHERE relnamespace = 'onefold_sinks'::regnamespace AND relname LIKE 'onefold\\_stage\\_%'
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdicts after a round, and the figures that people ask for."""

    round: int
    records: int
    comparison: Comparison
    in_doubt: int
    stage_rows: int
    glimpses: int
    verdicts: dict[str, tuple[str, ...]]

    @property
    def is_exact(self) -> bool:
        return not any(self.verdicts.values())

    def figures(self) -> dict[str, Any]:
        c = self.comparison
        return {
            "records": self.records,
            "rows": c.actual,
            "dead": c.dead,
            "lost": c.lost,
            "duplicated": c.duplicated,
            "changed": c.changed,
            "unexpected": c.unexpected,
            "in_doubt": self.in_doubt,
            "stage_rows": self.stage_rows,
            "glimpses": self.glimpses,
        }


@dataclass
class Auditor:
    """Reads the topic only once, and the table and the bookkeeping anew each time."""

    job: Job
    watcher: Watcher
    _orders: dict[Place, MixedOrder] = field(default_factory=dict)
    _read_to: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def __post_init__(self) -> None:
        self._sink = self.job.sink()
        url = self._sink.store_url()
        assert url is not None
        self._store = CheckpointStore(url)

    def ledger(self) -> LedgerEntry | None:
        committer = self._sink.recover(PIPELINE)
        try:
            return committer.ledger()
        finally:
            committer.close()

    def leftovers(self) -> tuple[Committable, ...]:
        """Prepared and open transactions of anybody in the pipeline's database, and every row in a stage."""
        found = []
        with psycopg.connect(self.job.postgres_url, autocommit=True, application_name="torture") as connection:
            for query, what in ((_IN_DOUBT, ""), (_OPEN, "open transaction of backend ")):
                for (name,) in connection.execute(query):
                    found.append(Committable(TABLE, SinkKind.TWO_PHASE, f"{what}{name}", 0, 0, 0))
            for (stage,) in connection.execute(_STAGES).fetchall():
                query = f'SELECT onefold_attempt, count(*) FROM onefold_sinks."{stage}" GROUP BY 1'
                for attempt, rows in connection.execute(query.encode()):
                    found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, f"{stage}/{attempt}", 0, 0, rows))
            listed = "SELECT stage, attempt, generation, epoch FROM onefold_sinks.onefold_staged"
            for stage, attempt, generation, epoch in connection.execute(listed):
                handle = f"listed {stage}/{attempt}"
                found.append(Committable(TABLE, SinkKind.LAST_RESOURCE, handle, generation, epoch, 0))
        return tuple(found)

    def audit(self, number: int) -> Audit:
        """Of a pipeline at rest. Raises OnefoldError, psycopg.Error or KafkaException where a server is down."""
        ledger = self.ledger()
        self.watcher.look()
        facts = self._store.facts(PIPELINE)
        positions = ledger.positions if ledger else Positions()
        self._read_topic(positions)
        leftovers = self.leftovers()
        compare = compare_newest if self.job.mode == "upsert" else compare_appended
        comparison = compare(self._orders, self._rows(), self._dead())
        self._judge_views()
        epochs = tuple(self.watcher.records[epoch] for epoch in sorted(self.watcher.records))
        evidence = Evidence(
            compared={TABLE: comparison},
            initial=facts.frozen,
            epochs=epochs,
            leftovers=leftovers,
            committed=self._committed() if self.job.delivery == "two_phase" else None,
            committed_from=ledger.epoch if ledger else 0,
            ledgers={TABLE: ledger} if ledger else {},
            store_id=facts.store_id,
            transitions=tuple(self.watcher.transitions),
            glimpses=tuple(self.watcher.glimpses),
        )
        atomic = bool(self.watcher.glimpses)  # only of the delivery that promises it does the watcher take any
        judged = [invariant for invariant in INVARIANTS if atomic or not isinstance(invariant, AtomicEpoch)]
        staged = sum(c.rows for c in leftovers if c.kind is SinkKind.LAST_RESOURCE)
        in_doubt = sum(c.kind is SinkKind.TWO_PHASE for c in leftovers)
        held = verdicts(evidence, judged)
        return Audit(number, len(self._orders), comparison, in_doubt, staged, len(evidence.glimpses), held)

    def close(self) -> None:
        self._store.close()

    def _read_topic(self, positions: Positions) -> None:
        """The committed orders up to the ledger's positions, but for refunds, which the pipeline leaves out."""
        end = {p: int(dict(positions.items).get(f"{TOPIC}/{p}", 0)) for p in range(PARTITIONS)}
        for place, value in topic.read(self.job.bootstrap_servers, TOPIC, self._read_to, end).items():
            order = MixedOrder.parse(value)
            if order.amount > 0:
                self._orders[place] = order
        self._read_to = end

    def _rows(self) -> dict[Hashable, list[Row]]:
        found: dict[Hashable, list[Row]] = {}
        with psycopg.connect(self.job.postgres_url, autocommit=True, options="-c timezone=UTC") as connection:
            columns = "id, version, account, amount, at" if self.job.mode == "upsert" else "id, account, amount, at"
            for row in connection.execute(f"SELECT {columns} FROM {TABLE}".encode()):
                found.setdefault(row[0], []).append(tuple(row))
        return found

    def _dead(self) -> dict[Place, int]:
        if not self.job.bad_rows:
            return {}
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            return {(partition, offset): times for partition, offset, times in connection.execute(_DEAD)}

    def _judge_views(self) -> None:
        """What readers saw of a table of versions: exactly what the last decided epoch left?"""
        seen, self.watcher.views = self.watcher.views, {}
        for epoch, left in versions_after(self.watcher.records, self._orders) if seen else ():
            for view in (view for (of, _), view in seen.items() if of == epoch):
                agreed = sum(left.get(key) == version for key, version in view)
                whole = len(left.keys() | {key for key, _ in view})
                self.watcher.glimpses.add(Glimpse(TABLE, epoch, agreed, whole))

    def _committed(self) -> tuple[Committable, ...]:
        with psycopg.connect(self.job.postgres_url, autocommit=True) as connection:
            parts = connection.execute(_PARTS, (PIPELINE, TABLE)).fetchall()
        return tuple(
            Committable(TABLE, SinkKind.TWO_PHASE, gid, generation, epoch, rows)
            for epoch, generation, gid, rows in parts
        )
