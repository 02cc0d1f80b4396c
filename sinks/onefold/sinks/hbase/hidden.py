"""Finds rows of an epoch that newer cells hide from readers.

A put succeeds also below a newer cell. So after a task has put all of its rows, it scans for cells that are newer than
the epoch: HBase answers without reading rows as long as there are none. Only where there are some does the task read
its own rows back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.clients.hbase.rows.cells import Columns
from onefold.clients.hbase.table import HBaseTable
from onefold.core.contract import TaskId
from onefold.core.errors import ConfigError, Fenced
from onefold.sinks.hbase.epoch_log import TableNotes
from onefold.sinks.hbase.sink_plan import HBasePlan

KEYS_MAX = 20_000  # that are read at once

Hidden = tuple[bytes, int | None]  # a row key, and the time of what hides the row; None: a delete does


def check_shown(
    table: HBaseTable,
    written: Sequence[tuple[pa.BinaryArray, pa.BooleanArray]],
    columns: Columns,
    plan: HBasePlan,
    task: TaskId,
) -> None:
    """Raise ConfigError where a row that this task has put is hidden, and Fenced where a later epoch hides it.

    `written` are the keys, and which of them were deleted as HBase deletes.
    """
    bounds = [pc.min_max(keys).as_py() for keys, _ in written if len(keys)]
    if not bounds:
        return
    start, stop = min(each["min"] for each in bounds), max(each["max"] for each in bounds) + b"\0"
    families = list(dict.fromkeys(family for family, _ in columns))
    if not table.has_newer(start, stop, families, task.timestamp_ms):
        return
    found = hidden(table, written, columns, task.timestamp_ms)
    if found is None:
        return
    key, time_ms = found
    where = f"{plan.settings.where(task.pipeline)}, epoch {task.epoch}"
    what = f"{where}: the row {key!r} was put at {task.timestamp_ms} ms, this epoch's time, and"
    noted = TableNotes(plan.settings, task.pipeline).read()
    if noted.epoch > task.epoch or noted.generation > task.generation:
        raise Fenced(
            "epoch-overtaken",
            f"{what} a later epoch or generation has begun since. Another process runs this pipeline: stop this one",
        )
    by = "a delete at a later time" if time_ms is None else f"a cell at {time_ms} ms"
    raise ConfigError(
        "newer-cell-in-table",
        f"{what} is hidden by {by}, of another pipeline, or of one whose clock was ahead. Set that clock right and stop"
        " who writes these rows; once the clock is past that time, write the table again under a new pipeline name,"
        " from the first record: its rows come above what is there",
    )


def hidden(
    table: HBaseTable, written: Iterable[tuple[pa.BinaryArray, pa.BooleanArray]], columns: Columns, timestamp_ms: int
) -> Hidden | None:
    """The first row that does not show what was put at that time; None if all rows do."""
    for keys, deleted in written:
        for at in range(0, len(keys), KEYS_MAX):
            some, is_gone = keys[at : at + KEYS_MAX], deleted[at : at + KEYS_MAX]
            stamps = table.read(some, columns).timestamps
            newest, oldest = (pc.fill_null(pick(*stamps, skip_nulls=skip), -1) for pick, skip in _ENDS)
            is_above = pc.greater(newest, timestamp_ms)
            is_missing = pc.and_not(pc.less(oldest, timestamp_ms), is_gone)
            wrong = np.flatnonzero(pc.or_(is_above, is_missing).to_numpy(zero_copy_only=False))
            if len(wrong):
                first = int(wrong[0])
                time_ms = newest[first].as_py()
                return some[first].as_py(), time_ms if time_ms > timestamp_ms else None
    return None


_ENDS = ((pc.max_element_wise, True), (pc.min_element_wise, False))
