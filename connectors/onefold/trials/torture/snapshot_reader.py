"""Reads the table again and again: which part of an epoch does one snapshot show?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psycopg

from onefold.core import EpochRecord
from onefold.core.invariants import DECIDED, Observation
from onefold.trials.torture.destinations.table_comparison import RecordId, versions_after
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.mixed import MixedOrder
from onefold.trials.workload.workload_settings import TABLE, Job

View = tuple[tuple[int, int], ...]  # the rows of a table of versions: key and version

_LAST_DECIDED = "FROM onefold_sinks.onefold_epochs WHERE pipeline = %s AND state IN ('decided', 'complete')"
_COUNTED = f"SELECT (SELECT count(*) FROM {TABLE}), max(epoch) {_LAST_DECIDED}"
_COUNTED_WITH_DEAD = _COUNTED.replace(
    f"FROM {TABLE})",
    f"FROM {TABLE}) + (SELECT count(*) FROM onefold_sinks.onefold_dead_letters)",
)
_VERSIONS = f"""
SELECT (SELECT array_agg(id ORDER BY id) FROM {TABLE}), (SELECT array_agg(version ORDER BY id) FROM {TABLE}), max(epoch)
{_LAST_DECIDED}
"""


@dataclass
class TableReader:
    """For a delivery that promises whole epochs, with the checkpoint store in the same database."""

    job: Job
    _observations: set[Observation] = field(default_factory=set)
    _counts: set[tuple[int, int]] = field(default_factory=set)  # the last decided epoch, and rows; not judged yet
    _views: dict[tuple[int, int], View] = field(default_factory=dict)  # by epoch and content, not judged yet

    def look(self) -> None:
        """Read the table and the last decided epoch's number in one snapshot. Raises psycopg.Error."""
        query = _COUNTED_WITH_DEAD if self.job.has_letters_table else _COUNTED
        with psycopg.connect(self.job.postgres_url, connect_timeout=2, application_name="torture") as connection:
            connection.execute("SET statement_timeout = 2000")
            (row,) = connection.execute((_VERSIONS if self.job.mode == "upsert" else query).encode(), (PIPELINE,))
        if self.job.mode == "upsert":
            keys, versions, last = row
            view = tuple(zip(keys or (), versions or (), strict=True))
            if last is not None:
                self._views[last, hash(view)] = view
        elif row[1] is not None:
            there, last = row
            self._counts.add((last, there))

    def observations(
        self, records: Mapping[int, EpochRecord], orders: Mapping[RecordId, MixedOrder]
    ) -> tuple[Observation, ...]:
        """All so far: how many rows of the last decided epoch are there. Of a table of versions: exactly what it
        left?"""
        counts, self._counts = self._counts, set()
        rows = {epoch: _rows_of_table(record) for epoch, record in records.items() if record.state in DECIDED}
        for last, there in counts:
            before = sum(some for epoch, some in rows.items() if epoch < last)
            self._observations.add(Observation(TABLE, last, there - before, rows[last]))
        seen, self._views = self._views, {}
        for epoch, left in versions_after(records, orders) if seen else ():
            for view in (view for (of, _), view in seen.items() if of == epoch):
                agreed = sum(left.get(key) == version for key, version in view)
                whole = len(left.keys() | {key for key, _ in view})
                self._observations.add(Observation(TABLE, epoch, agreed, whole))
        return tuple(self._observations)


def _rows_of_table(record: EpochRecord) -> int:
    """The epoch's rows in the table, and its dead letters where they are in a table too."""
    return sum(committable.rows for committable in record.manifest if committable.sink == TABLE)
