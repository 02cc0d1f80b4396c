"""What comes out of windows: results, numbered where they come again, and the rows that they take back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onefold.engine.logics.windows.calendars import begins_of
from onefold.engine.logics.windows.window_logic import Numbers, us_of
from onefold.flow.graph.operators import Windowing
from onefold.flow.time.windows import Aligned

EARLY, ON_TIME, LATE = range(3)


class Emitter:
    """Of one operator. `results` are the key's columns, start, end, and results."""

    def __init__(self, schema: pa.Schema, operator: Windowing) -> None:
        self._schema, self._operator, self._start = schema, operator, len(operator.key)

    def once(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Those of windows that come out for the first time, at their end."""
        ones = np.ones(len(results), np.int64)
        return self._made(results, ones, ones * ON_TIME, is_taken_back=False)

    def again(
        self, results: pa.RecordBatch, fired: pa.RecordBatch, places: Numbers, when: Numbers
    ) -> tuple[list[pa.RecordBatch], pa.RecordBatch, Numbers]:
        """What comes out of windows that may have come out before; the results among it, and their numbers.

        fired   such results, with the number of times that their windows have come out in the column behind them; of a
                flow whose rows are not taken back they may have the key and the start alone
        when    EARLY, ON_TIME or LATE, of each result
        places  of each of these the place of the result that comes now, or -1
        """
        fired, places = fired.filter(pa.array(places >= 0)), places[places >= 0]
        emissions = np.ones(len(results), np.int64)
        np.add.at(emissions, places, fired.column(fired.num_columns - 1).to_numpy())
        if not self._operator.takes_back:
            return [self._made(results, emissions, when, is_taken_back=False)], results, emissions
        old = fired.select(range(results.num_columns))
        is_same = np.zeros(len(results), bool)
        if self._operator.results == "retracting":
            is_same[places] = _equal(old, results.take(pa.array(places)))  # of several in one, each has other times
            back = ~is_same[places]
        else:  # a row of the same start is replaced by the new one
            back = us_of(old.column(self._start)) != us_of(results.column(self._start))[places]
        taken = self._made(old.filter(pa.array(back)), emissions[places[back]], when[places[back]], is_taken_back=True)
        results, emissions, when = results.filter(pa.array(~is_same)), emissions[~is_same], when[~is_same]
        out = [taken, self._made(results, emissions, when, is_taken_back=False)]
        return [each for each in out if len(each)], results, emissions

    def _made(self, rows: pa.RecordBatch, emissions: Numbers, when: Numbers, *, is_taken_back: bool) -> pa.RecordBatch:
        columns, of = rows.columns, self._operator.windows
        if isinstance(of, Aligned) and of.calendar is not None:
            for at in (self._start, self._start + 1):
                columns[at] = pa.array(begins_of(of.calendar, us_of(columns[at]))).view(columns[at].type)
        if self._operator.fires_again:
            columns.append(pa.array(emissions))
        if self._operator.takes_back:
            columns.append(pa.array(np.full(len(rows), is_taken_back)))
        if self._operator.timing is not None:
            columns.append(pa.array(["early", "on_time", "late"]).take(pa.array(when)))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _equal(rows: pa.RecordBatch, others: pa.RecordBatch) -> Numbers:
    """Row by row; nulls are equal, and so is what is not a number."""
    found = np.ones(len(rows), bool)
    for one, other in zip(rows.columns, others.columns, strict=True):
        try:
            is_equal = pc.fill_null(pc.equal(one, other), False)
            is_equal = pc.or_(is_equal, pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True)))
        except pa.ArrowNotImplementedError:
            is_equal = pa.array(map(pa.Scalar.equals, one, other), pa.bool_())  # Python has not all values
        found &= is_equal.to_numpy(zero_copy_only=False)
    return found
