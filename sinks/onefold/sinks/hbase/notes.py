"""The ledger of an HBase sink: one row in a table of its own, which goes forward by compare-and-set."""

from __future__ import annotations

import json

import pyarrow as pa

from onefold.core.errors import ConfigError, InDoubt
from onefold.core.failpoints import failpoint
from onefold.hbase.cells import Cells
from onefold.hbase.table import HBaseTable
from onefold.sinks.hbase.plan import Settings
from onefold.sinks.naming import part
from onefold.sinks.notes import State

__all__ = ["LEDGER_FAMILY", "TableNotes"]

LEDGER_FAMILY = b"l"
_STATE, _SINK, _OWN = b"state", b"sink", b"own cells"
_TRIES_MAX = 5


class TableNotes:
    """Of one sink of one pipeline. Every call may be repeated, by any process.

    Whoever writes says which text it has read, and HBase writes where that one is still there: a request that lands
    late finds another one, unless nothing happened in between. The row also says what the sink is: a table, a mode.
    """

    def __init__(self, settings: Settings, pipeline: str) -> None:
        self._settings = settings
        self._where = settings.where(pipeline)
        self._table = HBaseTable(settings.hbase, settings.ledger_table)
        self._key = _one(f"{part(pipeline)}/{part(settings.name)}".encode())
        self._sink = json.dumps({"table": settings.declared.table, "mode": settings.mode.name}).encode()

    def read(self) -> State:
        return _state(self._read())

    def write(self, state: State, generation: int) -> State:  # noqa: ARG002 - one row, whoever writes
        """Note it, and return what stands then. Raises what a conditional put raises, InDoubt among it."""
        for _ in range(_TRIES_MAX):
            text = self._read()
            there = _state(text)
            whole = there.joined(state)
            if whole == there:
                return there
            new = Cells(LEDGER_FAMILY, _STATE, _one(whole.to_json()))
            who = Cells(LEDGER_FAMILY, _SINK, _one(self._sink))
            expected = pa.array([text], pa.binary())
            is_written = self._table.put_if_equal(self._key, new, expected, [who], None)
            failpoint("hbase:noted")
            if is_written[0].as_py():
                return whole
        raise InDoubt(
            f"{self._where}, noting epoch {state.at[0]} in the table {self._settings.ledger_table!r}: others have"
            f" written the row {_TRIES_MAX} times meanwhile"
        )

    def keep_own_family(self, family: bytes) -> None:
        """Remember where the sink's own cells are. Raises ConfigError where that was another family before: what it
        has applied already would not be found there, and be applied again."""
        where = (LEDGER_FAMILY, _OWN)
        if self._table.get(self._key, [where])[0][0].as_py() is None:
            absent = pa.nulls(1, pa.binary())
            who = Cells(LEDGER_FAMILY, _SINK, _one(self._sink))
            self._table.put_if_equal(self._key, Cells(*where, _one(family)), absent, [who], None)
        known = self._table.get(self._key, [where])[0][0].as_py()
        if known != family:
            raise ConfigError(
                f"{self._where} keeps what it knows of each row in the family {known.decode()}, and the first of its"
                f" families is now {family.decode()}: give new columns a family of the others, or behind them"
            )

    def close(self) -> None:
        """The connections are the process's, not its own."""

    def _read(self) -> bytes | None:
        text, sink = self._table.get(self._key, [(LEDGER_FAMILY, _STATE), (LEDGER_FAMILY, _SINK)])
        known = sink[0].as_py()
        if known is not None and known != self._sink:
            was = json.loads(known)
            raise ConfigError(
                f"{self._where} has written to the table {was['table']!r} with mode={was['mode']!r} before, and what"
                " its ledger says is of that: give the sink another name= for another table or mode"
            )
        found: bytes | None = text[0].as_py()
        return found


def _state(text: bytes | None) -> State:
    return State() if text is None else State.from_json(text)


def _one(value: bytes) -> pa.BinaryArray:
    return pa.array([value], pa.binary())
