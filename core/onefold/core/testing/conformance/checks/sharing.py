"""The check that every row shows, however the rows are shared out among writers within what the sink asks for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.checks import present
from onefold.core.contract import WriteThrough
from onefold.core.testing.conformance.promises import Promise
from onefold.core.testing.conformance.subject_kinds import SinkSubject, finish
from onefold.core.testing.conformance.workbench import Work, Workbench
from onefold.core.writing.arrangement import Arrangement, needed_by

EPOCHS = 2
ROWS = 12
WRITERS_MAX = 3


def rows_show_however_they_are_shared_out(subject: SinkSubject) -> None:
    """A sink whose readers drop rows that come out of their order, and which doesn't ask for it, fails here."""
    bench = Workbench(subject)
    epochs = subject.kind.epochs(bench, 1)
    for _ in range(EPOCHS):
        record = epochs.open()
        if isinstance(bench.committer, WriteThrough):
            bench.committer.announce(record)
        ids, batch = bench.batch(ROWS)
        need = needed_by(bench.sink)
        with subject.book.holding(Promise.SHARED_OUT, "writers") as held:
            works: list[Work] = []
            for share in _worst(batch, need, min(WRITERS_MAX, bench.sink.writers_max() or WRITERS_MAX)):
                writer = bench.sink.writer(bench.task(record.epoch))
                writer.write(batch.take(share))
                committable = present(writer.prepare(), "prepare returned None though rows were written")
                works.append(Work(committable, tuple(ids[row] for row in share)))
            finish(bench, epochs, record, works)
            bench.look(held)
    bench.close()


def _worst(batch: pa.RecordBatch, need: Arrangement, writers: int) -> list[list[int]]:
    """The rows of each writer: that with the last ones first, and each one's backwards where that is allowed."""
    rows = list(range(batch.num_rows))
    if need.in_place:
        return [rows]
    if need.order_by:
        order = [(name, "ascending") for name in need.order_by]
        rows = pc.sort_indices(pa.Table.from_batches([batch]), sort_keys=order).to_pylist()
    else:
        rows.reverse()
    # By turns that move on: what comes back in every so many rows, as a key may, is in no one task by chance.
    turns = [row + row // writers for row in range(batch.num_rows)]
    groups = _numbered(batch, need.partition_by) if need.partition_by else turns
    shares = [[row for row in rows if groups[row] % writers == writer] for writer in reversed(range(writers))]
    return [share for share in shares if share]


def _numbered(batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    """For each row, which of the different values of these columns it has."""
    found: dict[tuple[object, ...], int] = {}
    values = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    return [found.setdefault(value, len(found)) for value in values]
