"""Audits a pipeline at rest: collects evidence from the real servers, and judges the named invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onefold.core import Committable, LedgerEntry, Positions, SinkKind
from onefold.core.invariants import DECIDED, INVARIANTS, AtomicEpoch, Comparison, Evidence, verdicts
from onefold.flow.writing import STATE
from onefold.store.checkpoint_store import CheckpointStore
from onefold.trials.torture.destinations.destination import CommittedParts, DueRecords
from onefold.trials.torture.destinations.registry import destinations
from onefold.trials.torture.destinations.table_comparison import RecordId
from onefold.trials.torture.hop_databases import HopDatabases
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.torture.watcher import Watcher
from onefold.trials.workload import topic
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import PARTITIONS, TOPIC, Job

KEY_ORDER = "key-order"  # a verdict of topics alone: the records of one key are in the order of the source's partition


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdicts after a round, and the figures that people ask for."""

    round: int
    records: int
    comparisons: Mapping[str, Comparison]
    in_doubt: int
    stage_rows: int
    unnamed_files: int
    observations: int
    verdicts: dict[str, tuple[str, ...]]

    @property
    def is_exact(self) -> bool:
        """At rest nothing undecided may show, also where rows show before they are decided."""
        return not any(self.verdicts.values()) and not any(c.unexpected for c in self.comparisons.values())

    def figures(self) -> dict[str, Any]:
        """Summed up over the destinations."""
        every = self.comparisons.values()
        return {
            "records": self.records,
            "rows": sum(c.actual for c in every),
            "dead": sum(c.dead for c in every),
            "lost": sum(c.lost for c in every),
            "duplicated": sum(c.duplicated for c in every),
            "changed": sum(c.changed for c in every),
            "unexpected": sum(c.unexpected for c in every),
            "in_doubt": self.in_doubt,
            "stage_rows": self.stage_rows,
            "unnamed_files": self.unnamed_files,
            "observations": self.observations,
        }


@dataclass
class Auditor:
    """Reads topics only once, and tables and the bookkeeping anew each time."""

    job: Job
    watcher: Watcher
    _orders: dict[RecordId, MixedOrder] = field(default_factory=dict)
    _unreadable: dict[RecordId, bytes] = field(default_factory=dict)
    _read_to: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def __post_init__(self) -> None:
        self.destinations = destinations(self.job)
        self._store = CheckpointStore(self.job.store_url())

    def follow(self, job: Job) -> None:
        """What the pipeline is now: on Spark its state is no destination, nor what it kept on the engine before."""
        for destination in self.destinations:
            destination.close()
        self.job, self.destinations = job, destinations(job)

    def ledgers(self) -> dict[str, LedgerEntry | None]:
        """What each destination says of the pipeline. Raises one of SERVER_ERRORS."""
        return {destination.name: destination.ledger() for destination in self.destinations}

    def leftovers(self) -> tuple[Committable, ...]:
        every = (found for destination in self.destinations for found in destination.leftovers())
        return tuple(dict.fromkeys(every))  # two tables of one server have the same

    def audit(self, number: int) -> Audit:
        """Of a pipeline at rest. Raises one of SERVER_ERRORS where a server is down."""
        ledgers = self.ledgers()
        self.watcher.look()
        facts = self._store.facts(PIPELINE)
        first = next(iter(ledgers.values()))
        self._read_topic(self._reached(first))
        leftovers = self.leftovers()
        epochs = tuple(self.watcher.records[epoch] for epoch in sorted(self.watcher.records))
        if not self.job.on_engine:
            epochs = tuple(
                replace(epoch, manifest=tuple(part for part in epoch.manifest if part.sink != STATE))
                for epoch in epochs
            )
        due = DueRecords(self._orders, self._unreadable, tuple(epoch for epoch in epochs if epoch.state in DECIDED))
        found = {destination.name: destination.look(due) for destination in self.destinations}
        compared = {name: there.comparison for name, there in found.items()}
        reader = self.watcher.reader
        committed = self._committed(ledgers)
        evidence = Evidence(
            compared=compared,
            initial=facts.frozen,
            epochs=epochs,
            leftovers=leftovers,
            committed=committed.parts if committed else None,
            committed_from=committed.since if committed else 0,
            ledgers={name: ledger for name, ledger in ledgers.items() if ledger},
            store_id=facts.store_id,
            transitions=tuple(self.watcher.transitions),
            observations=reader.observations(self.watcher.records, self._orders) if reader else (),
            write_through=frozenset(d.name for d in self.destinations if d.writes_through),
        )
        atomic = bool(evidence.observations)  # only of the delivery that promises it is there a reader
        judged = [invariant for invariant in INVARIANTS if atomic or not isinstance(invariant, AtomicEpoch)]
        staged = sum(c.rows for c in leftovers if c.kind is SinkKind.LAST_RESOURCE)
        in_doubt = sum(c.kind is SinkKind.TWO_PHASE and c.sink != STATE for c in leftovers)
        unnamed = sum(c.sink == STATE for c in leftovers)
        held = verdicts(evidence, judged)
        if self.job.into_kafka and len(self.job.deliveries) == 1:  # beside others, rows are shared out as these need it
            held[KEY_ORDER] = tuple(text for there in found.values() for text in there.disorders)
        records = len(self._orders) + len(self._unreadable)
        return Audit(number, records, compared, in_doubt, staged, unnamed, len(evidence.observations), held)

    def close(self) -> None:
        self._store.close()
        for destination in self.destinations:
            destination.close()

    def _reached(self, ledger: LedgerEntry | None) -> Positions:
        if self.job.has_hops:
            return HopDatabases(self.job).planned()
        return ledger.positions if ledger else Positions()

    def _read_topic(self, positions: Positions) -> None:
        """The committed records up to the ledger's positions, but for refunds, which the pipeline leaves out."""
        end = {p: int(dict(positions.items).get(f"{TOPIC}/{p}", 0)) for p in range(PARTITIONS)}
        for place, value in topic.read(self.job.bootstrap_servers, TOPIC, self._read_to, end).items():
            try:
                order = MixedOrder.parse(value)
            except ValueError:
                self._unreadable[place] = value
                continue
            if order.amount > 0:
                self._orders[place] = order
        self._read_to = end

    def _committed(self, ledgers: Mapping[str, LedgerEntry | None]) -> CommittedParts | None:
        """None where one of the destinations cannot tell."""
        parts: list[Committable] = []
        since = 0
        for destination in self.destinations:
            found = destination.committed(self.watcher.records.values(), ledgers[destination.name])
            if found is None:
                return None
            parts += found.parts
            since = max(since, found.since)
        return CommittedParts(tuple(parts), since)
