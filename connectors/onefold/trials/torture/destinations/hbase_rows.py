"""The HBase table that the pipeline writes to, as an audit asks HBase about it."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar

from onefold.clients.hbase import HBaseTable
from onefold.core import Committable, EpochRecord, LedgerEntry
from onefold.trials.torture.destinations.destination import CommittedParts, Compared, DueRecords
from onefold.trials.torture.destinations.hbase_comparison import ROWS, compare_newest_of_epochs, compare_totals
from onefold.trials.torture.destinations.table_comparison import Row
from onefold.trials.torture.torture_settings import PIPELINE
from onefold.trials.workload.workload_settings import CELLS, TABLE, Job


@dataclass
class HBaseRows:
    """A Destination."""

    job: Job
    name: ClassVar[str] = CELLS
    writes_through: ClassVar[bool] = True

    def create(self) -> None:
        """The sink makes it."""

    def ledger(self) -> LedgerEntry | None:
        committer = self.job.cells().recover(PIPELINE)
        try:
            return committer.ledger()
        finally:
            committer.close()

    def look(self, due: DueRecords) -> Compared:
        rows = self._rows()
        if self.job.into_hbase == "row_key":
            return Compared(compare_newest_of_epochs(due.epochs, due.orders, rows))
        return Compared(compare_totals(due.orders, rows, by_partition=self.job.into_hbase == "incremental"))

    def leftovers(self) -> tuple[Committable, ...]:
        """What is written shows, and nothing waits."""
        return ()

    def committed(self, epochs: Collection[EpochRecord], ledger: LedgerEntry | None) -> CommittedParts | None:
        return CommittedParts(())

    def close(self) -> None:
        """The connections are the process's, not its own."""

    def _rows(self) -> dict[Hashable, list[Row]]:
        settings = self.job.cells().settings
        assert self.job.into_hbase is not None
        schema = ROWS[self.job.into_hbase]
        mapping = settings.declared.reading(schema)
        marks = (
            []
            if mapping.tombstone_column is None
            else [(mapping.tombstone_column.family, mapping.tombstone_column.qualifier)]
        )
        found: dict[Hashable, list[Row]] = {}
        columns = [*mapping.cell_columns, *marks]
        for part in HBaseTable(settings.hbase, TABLE).scan(b"", b"", columns):
            batch = mapping.decode(part.keys, part.values[: len(mapping.columns)])
            if marks:
                batch = batch.filter(mapping.living(part.values[-1]))
            for values in zip(*(batch[name].to_pylist() for name in schema.names), strict=True):
                found.setdefault(values[0], []).append(values)
        return found
